//! The messages of a stage: the application of rdpipe, and of rdcat, whose files are one stage. Pure, no I/O.
//!
//! They travel inside the envelope ([`protocol`](super::protocol)), which brings up the stage's edges,
//! starts it and ends it.

use serde::{Deserialize, Serialize};

use super::protocol::EdgeId;

/// What one stage does, and with which of its order's edges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageOrder {
    /// What the stage does.
    pub(crate) work: StageWork,
    /// The edge that the stage reads; none is an empty input.
    pub(crate) input: Option<EdgeId>,
    /// The edge that the stage writes; none discards the output.
    pub(crate) output: Option<EdgeId>,
    /// Whether files are fsynced before they are committed.
    pub(crate) fsync: bool,
}

/// What a stage does. Paths and commands are bytes, as the system has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StageWork {
    /// Runs this command in the user's login shell.
    Command(Vec<u8>),
    /// `< path`: sends the file; reads the input, if there is one, to its end before that.
    Read(Vec<u8>),
    /// `> path` and `>> path`: writes the input to the file; sends an empty output.
    Write {
        /// The file.
        path: Vec<u8>,
        /// Whether the input goes after what the file holds already.
        append: bool,
    },
    /// The files of rdcat: sends one after the other. A file that cannot be opened is left out and named
    /// in [`FromStage::Unreadable`].
    Files(Vec<Vec<u8>>),
}

/// A message from the controller to a stage. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToStage {
    /// Every earlier stage has succeeded: commit the file (`>`), open it (`<`).
    Proceed,
}

/// A message from a stage to the controller. The order of the variants is the wire format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromStage {
    /// The stage has its whole input, verified, and waits for [`ToStage::Proceed`]: a `>` or `>>` before
    /// it commits, a `<` with an input before it opens its file.
    InputComplete,
    /// The command and all its child processes have exited, or the file is committed. Some of the output
    /// may still be on its way.
    Ended(Status),
    /// How far the stage is, a few times a second at most.
    Progress {
        /// Bytes read from the input.
        bytes_in: u64,
        /// Bytes written to the output.
        bytes_out: u64,
    },
    /// One of several files was left out: nothing of it was sent.
    Unreadable {
        /// The file, as the user typed it.
        path: Vec<u8>,
        /// Why it could not be read.
        why: String,
    },
}

/// How a stage ended: the result in its agent's report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageReport {
    /// How its command ended; `Exited(0)` for a file that was committed; none if it never began.
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
    /// The part of that time in which the stage waited for input.
    pub(crate) blocked_on_input_us: u64,
    /// The part of that time in which the stage waited for the next one to take its output.
    pub(crate) blocked_on_output_us: u64,
}

/// How a process, or a stage without one, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Status {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Signaled(u8),
}
