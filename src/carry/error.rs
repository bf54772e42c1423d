//! Which end failed while bytes were carried.

use std::io;

use crate::Error;

/// The end that failed while bytes were carried between a stream and a local file, pipe or terminal.
///
/// The error does not name the source or sink: each program has its own name for it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    /// The source could not be read.
    #[error("cannot read the input at byte {offset}: {source}")]
    Source {
        /// The number of bytes that were read before.
        offset: u64,
        /// The error of the read.
        source: io::Error,
    },
    /// The sink could not be written or flushed.
    #[error("cannot write the output at byte {offset}: {source}")]
    Sink {
        /// The number of bytes that the sink took before.
        offset: u64,
        /// The error of the write; `BrokenPipe` if the reader of the sink has left.
        source: io::Error,
    },
    /// The stream failed, or its peer stopped reading ([`Error::Stopped`]).
    #[error(transparent)]
    Stream(#[from] Error),
}

impl CarryError {
    /// Takes the stream's error out of the [`io::Error`] in which tokio's traits pass it on.
    pub(super) fn of_stream(error: &io::Error) -> Self {
        Self::Stream(stream_error(error))
    }
}

/// Returns the error of a stream that one of its tokio traits has returned.
pub(crate) fn stream_error(error: &io::Error) -> Error {
    // Every error of a stream has an `Error` inside; the default keeps an exception a failure.
    let inner = Error::from_io(error).cloned();
    inner.unwrap_or(Error::Misuse("the stream failed without a reason"))
}
