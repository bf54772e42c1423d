//! The messages of a stage: the application of rdpipe, and of rdcat, whose files are one stage. Pure, no I/O.
//!
//! These messages travel inside the envelope ([`protocol`](super::protocol)). The envelope connects the edges of
//! the stage, starts the stage and ends it.

use serde::{Deserialize, Serialize};

use super::protocol::EdgeId;
use crate::{fd::EntryIdentity, options::FlowOptions};

/// What one stage does, and which edges of its order are its input and its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageOrder {
    pub(crate) work: StageWork,
    /// The edge that the stage reads. A stage without one has an empty input.
    pub(crate) input: Option<EdgeId>,
    /// The edge that the stage writes. The output of a stage without one is discarded.
    pub(crate) output: Option<EdgeId>,
    /// Whether files are fsynced before they are committed.
    pub(crate) fsync: bool,
    /// The file that the controller writes its output to. [`StageWork::Files`] leaves it out.
    pub(crate) output_file: Option<EntryIdentity>,
    /// What limits and holds the bytes of each edge.
    pub(crate) flow: FlowOptions,
    /// True if a user watches the progress: the stage then reports it also while no bytes move.
    pub(crate) is_watched: bool,
}

/// What a stage does. Paths and commands are bytes: they need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StageWork {
    /// Runs this command in the user's login shell.
    Command(Vec<u8>),
    /// `< path`: sends the file. If the stage has an input, it first reads the input to its end.
    Read(Vec<u8>),
    /// `> path` and `>> path`: writes the input to the file, and sends an empty output.
    Write {
        path: Vec<u8>,
        /// Whether the input is appended (`>>`) and does not replace the file (`>`).
        append: bool,
    },
    /// The files of rdcat: sends one after the other. A file that cannot be opened is left out and reported
    /// in [`FromStage::Unreadable`].
    Files(Vec<Vec<u8>>),
    /// Runs this command in the user's login shell, with a stdin whose reads fail: that of rdpipe is closed.
    CommandWithoutStdin(Vec<u8>),
    /// Runs this command in the user's login shell as sshd does: the stage has the status of the command itself, and
    /// ends when the command has exited and all that have its stdout have closed it. Processes that are left go on.
    SshCommand(Vec<u8>),
}

/// A message from the controller to a stage. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToStage {
    /// Tells the stage that every earlier stage has succeeded: `>` and `>>` commit the file, `<` opens it.
    Proceed,
}

/// A message from a stage to the controller. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromStage {
    /// The stage has received and verified its whole input, and waits for [`ToStage::Proceed`]: `>` and `>>` before
    /// they commit, `<` with an input before it opens its file.
    InputComplete,
    /// The command and all its child processes have exited, or the file is committed. The next stage may not have
    /// received all of the output yet.
    Ended(Status),
    /// The progress of the stage, reported a few times a second at most.
    Progress(StageProgress),
    /// One of several files was left out: none of its bytes were sent.
    Unreadable {
        /// The path, as the user typed it.
        path: Vec<u8>,
        /// The reason why it could not be read.
        why: String,
    },
    /// The stage will read this file, or write into it while other stages may still read it. Sent before the edges of
    /// the stage are connected.
    Opens {
        file: EntryIdentity,
        /// True if it is written: by `>>`, or by `>` if it cannot be replaced at the end.
        is_written: bool,
    },
}

/// How far a stage is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageProgress {
    /// Bytes read from the input.
    pub(crate) bytes_in: u64,
    /// Bytes written to the output.
    pub(crate) bytes_out: u64,
    /// The time in which the stage has waited for input so far.
    pub(crate) blocked_on_input_us: u64,
    /// The time in which the stage has waited for the next stage so far.
    pub(crate) blocked_on_output_us: u64,
    /// The bytes of the files that the stage sends, if they are known.
    pub(crate) file_bytes: Option<u64>,
}

impl StageProgress {
    /// Returns the bytes of the busier side.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_in.max(self.bytes_out)
    }
}

/// What is under the name of the file of `>` after its stage has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TargetFile {
    /// The new file, as far as it was written; or the stage is none of `>`.
    #[default]
    New,
    /// The file that was there before, unchanged.
    Old,
    /// Nothing, as before.
    Missing,
}

/// How a stage ended: the result in its agent's report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageReport {
    /// How the command ended; `Exited(0)` for a file that was committed; none if the stage never began.
    pub(crate) status: Option<Status>,
    /// Whether the next stage stopped reading before this one had finished writing.
    pub(crate) output_stopped: bool,
    /// Whether this stage stopped reading before its input had ended.
    pub(crate) input_stopped: bool,
    /// Bytes read from the input.
    pub(crate) bytes_in: u64,
    /// Bytes written to the output.
    pub(crate) bytes_out: u64,
    /// The time from [`Go`](super::protocol::ToAgent::Go) to the end.
    pub(crate) elapsed_us: u64,
    /// The part of the elapsed time in which the stage waited for input.
    pub(crate) blocked_on_input_us: u64,
    /// The part of the elapsed time in which the stage waited for the next stage to receive its output.
    pub(crate) blocked_on_output_us: u64,
    pub(crate) file: TargetFile,
}

/// How a process, or a stage without one, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Status {
    Exited(u8),
    Signaled(u8),
}
