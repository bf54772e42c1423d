//! What a stage does once its edges stand: a command, or a file.

mod append;
mod command;
mod files;
mod output_file;
mod path;
mod read;
mod tree;
mod write;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{cause::Cause, control::Outbox, joint::Joint};
use crate::{
    carry::thread::CarryThread,
    ssh::protocol::{Status, Work},
};

/// What everybody who works on the stage shares.
#[derive(Clone)]
pub(super) struct Stage {
    /// How peers know it: "stage 2 (fs2)".
    pub(super) name: String,
    pub(super) cause: Arc<Cause>,
    pub(super) outbox: Outbox,
    /// Everything before this stage has succeeded.
    pub(super) proceed: CancellationToken,
    /// fsync files before they are committed.
    pub(super) fsync: bool,
}

/// An edge, and the thread that it lives on.
pub(super) type Placed = (CarryThread, Joint);

/// Both edges, where there are any.
pub(super) struct Ends {
    pub(super) input: Option<Placed>,
    pub(super) output: Option<Placed>,
}

impl Stage {
    /// Does the work, and returns when nothing of it runs any more and both edges are closed. The
    /// status is none where nothing began.
    pub(super) async fn run(&self, work: Work, ends: Ends) -> Option<Status> {
        match work {
            Work::Command(command) => command::run(self, &command, ends).await,
            Work::Files(paths) => files::run(self, paths, ends).await,
            Work::Read(path) => read::run(self, path::resolve(path), ends).await,
            Work::Write { path, append } => {
                write::run(self, path::resolve(path), append, ends).await
            }
        }
    }

    /// Waits until everything before this stage has succeeded. `false` where it will not.
    async fn may_proceed(&self) -> bool {
        tokio::select! {
            () = self.proceed.cancelled() => true,
            () = self.cause.failed() => false,
        }
    }

    /// Says what went wrong with something of this stage's own.
    fn own(&self, text: &str) {
        let reason = format!("{}: {text}", self.name);
        let kind = crate::ssh::protocol::FaultKind::Own;
        self.cause.fail(kind, text, reason);
    }
}
