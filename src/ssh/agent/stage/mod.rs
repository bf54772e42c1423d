//! The application *stage*: runs a command, or reads or writes files, between connected edges.
//!
//! | file | what it has |
//! |---|---|
//! | `job` | the stage as an application of the agent: its order, its messages, its report |
//! | `command` | a stage that runs a command |
//! | `read` | a stage that reads a file: `< path` |
//! | `write` | a stage that writes a file: `> path` and `>> path` |
//! | `path` | expands a path that the user typed |

mod command;
mod job;
pub(super) mod path;
mod read;
mod write;

use tokio_util::sync::CancellationToken;

use self::command::EmptyStdin;
pub(super) use self::job::StageJob;
use super::job::{JobContext, PlacedEdge};
use crate::ssh::{
    protocol::{FromAgent, Payload},
    stage::{FromStage, StageWork, Status},
};

/// What all tasks that work on the stage share.
#[derive(Clone)]
pub(super) struct StageContext {
    pub(super) context: JobContext,
    /// Cancelled when every earlier stage has succeeded.
    pub(super) proceed: CancellationToken,
    /// Whether files are fsynced before they are committed.
    pub(super) fsync: bool,
}

/// The input and the output edge of a stage, each if it has one.
pub(super) struct StageEdges {
    pub(super) input: Option<PlacedEdge>,
    pub(super) output: Option<PlacedEdge>,
}

impl StageContext {
    /// Does the work of the stage. Returns its status when all of its processes have exited and both edges are
    /// closed. The status is none if the work never began.
    pub(super) async fn run(&self, work: StageWork, ends: StageEdges) -> Option<Status> {
        match work {
            StageWork::Command(command) => {
                command::run(self, &command, EmptyStdin::Readable, ends).await
            }
            StageWork::CommandWithoutStdin(command) => {
                command::run(self, &command, EmptyStdin::Unreadable, ends).await
            }
            StageWork::Files(paths) => read::run_files(self, paths, ends).await,
            StageWork::Read(path) => read::run(self, path::resolve(path), ends).await,
            StageWork::Write { path, append } => {
                write::run(self, path::resolve(path), append, ends).await
            }
        }
    }

    /// Sends a message to the controller.
    fn send(&self, message: &FromStage) {
        match Payload::encode(message) {
            Ok(payload) => self.context.outbox.send(FromAgent::Application(payload)),
            // Only a message with a path of nearly 256 KiB and the reason of a failure can be too long.
            Err(error) => self.context.fail_local(&error.to_string()),
        }
    }

    /// Waits until every earlier stage has succeeded. Returns false if this stage has to end before that.
    async fn may_proceed(&self) -> bool {
        tokio::select! {
            () = self.proceed.cancelled() => true,
            () = self.context.cause.failed() => false,
        }
    }
}
