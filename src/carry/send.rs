//! Sends all of a source.

use std::time::Duration;

use tokio::io::AsyncRead;

use super::{CarryError, Finish, Watched, pump, unless_interrupted};
use crate::{fd::Source, transport::FillSlots};

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
pub(super) const SETTLE_DELAY: Duration = Duration::from_millis(10);
