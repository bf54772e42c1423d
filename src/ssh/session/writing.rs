//! Writes the messages to an agent, and wipes their memory: an order holds keys.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::SinkExt;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc::UnboundedReceiver,
    time::{MissedTickBehavior, interval},
};
use tokio_util::codec::FramedWrite;
use zeroize::Zeroize;

use crate::ssh::protocol::{self, ToAgent, frames::codec, greeting};

/// Writes the greeting, then the messages in the queue, and a ping after every `pause` without a message.
pub(super) async fn write_messages(
    mut output: impl AsyncWrite + Unpin,
    mut queue: UnboundedReceiver<ToAgent>,
    pause: Duration,
) {
    if output
        .write_all(greeting("controller").as_bytes())
        .await
        .is_err()
    {
        return;
    }
    let mut frames = FramedWrite::new(output, codec());
    let mut pings = interval(pause.max(Duration::from_millis(10)));
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first message to an agent must be its order: no ping before it.
    let mut ordered = false;
    loop {
        let message = tokio::select! {
            message = queue.recv() => message,
            _ = pings.tick(), if ordered => Some(ToAgent::Ping),
        };
        let Some(message) = message else { return };
        ordered = true;
        let Ok(bytes) = protocol::encode(&message) else {
            return;
        };
        let length = bytes.len();
        if frames.send(Bytes::from_owner(bytes)).await.is_err() {
            return;
        }
        wipe_sent(frames.write_buffer_mut(), length);
    }
}

/// Wipes the bytes of a frame from the buffer from which it was sent. `length` is the length of the message in the frame.
///
/// The buffer is empty by then, but its memory still holds the frame: the part before the place of the next byte.
fn wipe_sent(buffer: &mut BytesMut, length: usize) {
    if buffer.is_empty() {
        // Asking for more than lies behind the next byte moves that place back to the start.
        let _ = buffer.try_reclaim(buffer.capacity() + length);
        buffer.spare_capacity_mut().zeroize();
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Buf, BufMut};

    use super::*;

    /// Checks which memory [`wipe_sent`] wipes. The wiped bytes are not read: spare capacity counts as uninitialized.
    #[test]
    fn the_spare_capacity_begins_at_the_sent_frame() {
        let mut buffer = BytesMut::with_capacity(8192);
        let start = buffer.as_ptr();
        let frame = b"\0\0\0\x04key!\n";
        buffer.put_slice(frame);
        buffer.advance(3);
        buffer.advance(frame.len() - 3);
        wipe_sent(&mut buffer, 4);
        assert_eq!((buffer.as_ptr(), buffer.capacity()), (start, 8192));
        // The next frame is written over the old one.
        assert!(buffer.is_empty());
        // A frame that has not been sent stays.
        buffer.put_slice(frame);
        wipe_sent(&mut buffer, 4);
        assert_eq!(&buffer[..], frame);
    }
}
