//! The loop that moves the bytes of rdsend, rdrecv, rdcat and rdpipe: all of a source into a stream, and all of a
//! stream into a sink.
//!
//! [`send_all`] and [`receive_all`] move the bytes; both stop as soon as the stream fails.
//! [`send_all_and_finish`] also sends the end of the stream and waits for its confirmation. Opening
//! the source or sink, committing the output and confirming it are the caller's part, because a
//! program, a pipeline's own end and an agent's stage do these at different times.
//!
//! | file | what it has |
//! |---|---|
//! | `pump` | the loop that moves bytes: source to stream, and stream to sink |
//! | `thread` | a thread that moves the bytes of one edge, or of one direction of a stream |

pub(crate) mod pump;
#[cfg(test)]
mod tests;
pub(crate) mod thread;

use std::{io, time::Duration};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite};

use crate::{Error, ReadHalf, Stream, Watch, WriteHalf, fd::Source, transport::FillSlots};

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
    fn of_stream(error: &io::Error) -> Self {
        Self::Stream(stream_error(error))
    }
}

/// Returns the error of a stream that one of its tokio traits has returned.
pub(crate) fn stream_error(error: &io::Error) -> Error {
    // Every error of a stream has an `Error` inside; the default keeps an exception a failure.
    let inner = Error::from_io(error).cloned();
    inner.unwrap_or(Error::Misuse("the stream failed without a reason"))
}

/// A stream, or a half of one, whose failure can be awaited while its bytes are moved.
pub(crate) trait Watched {
    /// Returns a watch on the stream.
    fn watch(&self) -> Watch;
}

/// The sending side of a stream.
pub(crate) trait Finish {
    /// Sends the end of the stream and waits until the peer has confirmed all bytes.
    ///
    /// # Errors
    ///
    /// Fails if the stream fails before the confirmation arrives.
    ///
    /// # Cancel safety
    ///
    /// Safe: a later call waits for the same confirmation.
    fn finish(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Waits for `work`, or fails as soon as the watched stream does.
///
/// If both are ready at the same time, the result of `work` is returned.
///
/// # Errors
///
/// Returns the error that ended the stream.
///
/// # Cancel safety
///
/// That of `work`, which is dropped when the stream fails.
pub(crate) async fn unless_interrupted<T>(
    watch: &Watch,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        result = work => Ok(result),
        error = watch.interrupted() => Err(error),
    }
}

impl Watched for Stream {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Watched for ReadHalf {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Watched for WriteHalf {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Finish for Stream {
    async fn finish(&mut self) -> Result<(), Error> {
        Self::finish(self).await
    }
}

impl Finish for WriteHalf {
    async fn finish(&mut self) -> Result<(), Error> {
        Self::finish(self).await
    }
}

/// Sends all of `source` through `stream`, and no end of stream: more bytes may follow.
///
/// Returns the number of bytes. Bytes in a partly filled slot are posted when the source is idle.
/// The call fails as soon as the stream does, even while the source is idle.
///
/// # Errors
///
/// Returns [`CarryError::Source`] or [`CarryError::Stream`], for the end that fails first.
///
/// # Cancel safety
///
/// Bytes that were read stay in the stream's slots; only their number is lost.
pub(crate) async fn send_all<S, T>(source: &mut S, stream: &mut T) -> Result<u64, CarryError>
where
    S: AsyncRead + Unpin,
    T: FillSlots + Watched,
{
    let watch = stream.watch();
    unless_interrupted(&watch, pump::fill(source, stream)).await?
}

/// Sends all of `source` and the end of the stream, and waits until the peer has confirmed both.
///
/// Returns the number of bytes. If the source is not a regular file, the call waits for
/// [`SETTLE_DELAY`] before it sends the end of the stream; a caller that handles signals must drop
/// the future when one arrives.
///
/// # Errors
///
/// Returns [`CarryError::Source`] or [`CarryError::Stream`], for the end that fails first.
///
/// # Cancel safety
///
/// Bytes that were read stay in the stream's slots. The stream ends only if the end was sent before
/// the future was dropped.
pub(crate) async fn send_all_and_finish<T>(
    source: &mut Source,
    stream: &mut T,
) -> Result<u64, CarryError>
where
    T: FillSlots + Watched + Finish,
{
    let sent = send_all(source, stream).await?;
    if !source.is_regular_file() {
        tokio::time::sleep(SETTLE_DELAY).await;
    }
    stream.finish().await?;
    Ok(sent)
}

/// The time between the end of a source that is not a regular file and the end of the stream.
///
/// `^C` sends a signal to every program of a shell's pipeline. If the program in front of the pipe
/// dies first, its unfinished output must not be delivered as a complete one: this program needs the
/// time to receive its own signal. The thread that handles signals needs one turn of the scheduler,
/// well under a millisecond on an idle machine; 10 ms are many turns, and too short for a user to see.
const SETTLE_DELAY: Duration = Duration::from_millis(10);

/// Receives all of `stream` into `sink`, up to the verified end of the stream, and flushes the sink.
///
/// Returns the number of bytes. The output is not committed and the peer is not told: a caller
/// commits its output first, and confirms the stream afterwards.
///
/// The call fails as soon as the stream does, even while the sink takes nothing. A failure that
/// arrives after the last byte and before the return counts as well: a peer that is gone by then
/// has not been served.
///
/// # Errors
///
/// Returns [`CarryError::Stream`] or [`CarryError::Sink`], for the end that fails first.
///
/// # Cancel safety
///
/// Bytes that the sink took are consumed from the stream; only their number is lost.
pub(crate) async fn receive_all<R, W>(stream: &mut R, sink: &mut W) -> Result<u64, CarryError>
where
    R: AsyncBufRead + Watched + Unpin,
    W: AsyncWrite + Unpin,
{
    let watch = stream.watch();
    let received = unless_interrupted(&watch, pump::drain(stream, sink)).await??;
    match watch.error() {
        None => Ok(received),
        Some(error) => Err(error.into()),
    }
}
