//! Receives all into a sink.

use tokio::io::{AsyncBufRead, AsyncWrite};

use super::{CarryError, Watched, pump, unless_interrupted};

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
