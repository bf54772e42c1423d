//! What an engine of a copy, the source's or the destination's, shares with the agent that it runs in.

use std::{io, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::order::FromCopy;
use crate::{Error, Stream, carry::thread::CarryThread};

/// A function that queues a message for the controller.
pub(crate) type ReportSink = Arc<dyn Fn(FromCopy) + Send + Sync>;

/// The agent's side of a running copy.
#[derive(Clone)]
pub(crate) struct CopyContext {
    /// Queues a message for the controller.
    pub(crate) report: ReportSink,
    /// Cancelled when the work has failed elsewhere: the controller ended it, an edge broke, a signal came. The engine
    /// then stops within a second: it aborts its streams with [`reason`](Self::reason), and removes temporary files
    /// that cannot be resumed.
    pub(crate) cancelled: CancellationToken,
    /// Returns the first failure in words, for the peers.
    pub(crate) reason: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The streams of a copy, each with the thread whose runtime it belongs to.
pub(crate) struct CopyStreams {
    /// The two-way stream for questions and answers.
    pub(crate) control: (CarryThread, Stream),
    /// The streams for contents.
    pub(crate) lanes: Vec<(CarryThread, Stream)>,
}

/// The reason why an engine could not come to the end of its work. Failures of single files are no such reason.
#[derive(Debug, Clone)]
pub(crate) enum CopyFailure {
    /// A stream broke.
    Stream(Error),
    /// This process failed: a sentence for the user.
    Local(String),
    /// The work failed elsewhere ([`CopyContext::cancelled`]).
    Cancelled,
}

impl CopyFailure {
    /// Returns the failure that an error of a stream's read or write is.
    pub(crate) fn of_stream(error: &io::Error) -> Self {
        match Error::from_io(error) {
            Some(error) => Self::Stream(error.clone()),
            None => Self::Local(error.to_string()),
        }
    }
}
