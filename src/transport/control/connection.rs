//! The control connection of a running stream, shared by the control task and a keepalive task. Each message is a
//! length of two bytes, then one Noise message.
//!
//! The keepalive task runs on another runtime. It sends a ping when the runtime of the control task is blocked, for
//! instance by a disk that stalls.

use std::{
    future::poll_fn,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};
use tokio_util::codec::{Decoder, Encoder, Framed};

use super::{
    message::Message,
    noise::{Session, TAG_BYTES, Unopened},
    state::State,
};

/// The control connection of a running stream, which two tasks may use.
pub(super) struct ControlConnection(Mutex<ConnectionState>);

struct ConnectionState {
    /// `None` after the socket has been taken.
    control: Option<Control>,
    /// The control task is sending.
    is_busy: bool,
    /// The time of the last message sent.
    sent: Instant,
}

impl ControlConnection {
    /// A connection over which a message has just been sent.
    pub(super) fn new(control: Control) -> Self {
        Self(Mutex::new(ConnectionState {
            control: Some(control),
            is_busy: false,
            sent: Instant::now(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        // Nothing in here panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives the peer's next message; `None` at the end of the connection.
    ///
    /// # Cancel safety
    ///
    /// Safe: a partly read message stays buffered for the next call.
    pub(super) async fn next(&self) -> Option<Result<Message, ControlError>> {
        poll_fn(|cx| match &mut self.lock().control {
            Some(control) => control.poll_next_unpin(cx),
            None => Poll::Ready(None),
        })
        .await
    }

    /// Returns true if no message has arrived in part.
    pub(super) fn is_between_messages(&self) -> bool {
        let state = self.lock();
        state
            .control
            .as_ref()
            .is_none_or(|control| control.read_buffer().is_empty())
    }

    /// Sends `messages` in order. `now` is the current time.
    ///
    /// # Cancel safety
    ///
    /// Not safe: messages may be lost, and one may be sent in part. Nothing may be sent after that.
    pub(super) async fn send(
        &self,
        messages: Vec<Message>,
        now: Instant,
    ) -> Result<(), ControlError> {
        {
            let mut state = self.lock();
            (state.is_busy, state.sent) = (true, now);
        }
        let mut messages = messages.into_iter();
        let mut next = messages.next();
        poll_fn(|cx| {
            let mut state = self.lock();
            let Some(control) = &mut state.control else {
                return Poll::Ready(Ok(()));
            };
            while next.is_some() {
                ready!(control.poll_ready_unpin(cx))?;
                if let Some(message) = next.take() {
                    control.start_send_unpin(message)?;
                }
                next = messages.next();
            }
            ready!(control.poll_flush_unpin(cx))?;
            state.is_busy = false;
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Sends a ping if the control task, which sends a message at least every `ping`, is late and not sending.
    fn ping_if_late(&self, state: &State, ping: Duration) {
        let mut connection = self.lock();
        if connection.is_busy || connection.sent.elapsed() < ping + ping / 2 {
            return;
        }
        connection.sent = Instant::now();
        let Some(control) = &mut connection.control else {
            return;
        };
        // A ping that the connection does not take at once is dropped: the control task detects why.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(Ok(())) = control.poll_ready_unpin(&mut cx) {
            if control.start_send_unpin(state.data.ping()).is_ok() {
                let _ = control.poll_flush_unpin(&mut cx);
            }
        }
    }

    /// Takes the socket out, to be closed.
    pub(super) fn take_socket(&self) -> Option<TcpStream> {
        self.lock().control.take().map(Control::into_inner)
    }
}

/// Sends keepalives while the control task's runtime is blocked, until the stream has ended. It reports how far the
/// data path has got, and never judges it.
pub(super) async fn keep_alive(
    connection: Arc<ControlConnection>,
    state: Arc<State>,
    ping: Duration,
) {
    let pings = async {
        loop {
            sleep(ping / 2).await;
            connection.ping_if_late(&state, ping);
        }
    };
    state.ended.run_until_cancelled(pings).await;
}

/// The size of the length field of each message, which is big-endian as in Noise's examples.
const LENGTH_BYTES: usize = 2;

/// The encrypted control connection.
pub(crate) type Control = Framed<TcpStream, Codec>;

/// Encrypts and decrypts the control connection.
pub(crate) struct Codec(pub(crate) Session);

/// The reason why a control connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// The TCP connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A message could not be opened.
    #[error(transparent)]
    Unopened(#[from] Unopened),
}

impl From<ControlError> for io::Error {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Io(error) => error,
            ControlError::Unopened(unopened) => Self::new(io::ErrorKind::InvalidData, unopened),
        }
    }
}

/// Returns the error of a connection that ends where a message is due.
pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other end")
}

impl Decoder for Codec {
    type Item = Message;
    type Error = ControlError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, ControlError> {
        match next_sealed(buffer)? {
            Some(sealed) => Ok(Some(self.0.open(&sealed)?)),
            None => Ok(None),
        }
    }

    /// Treats a connection that ends inside a message as one that ends: the peer is gone.
    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, ControlError> {
        self.decode(buffer)
    }
}

impl Encoder<Message> for Codec {
    type Error = ControlError;

    fn encode(&mut self, message: Message, buffer: &mut BytesMut) -> Result<(), ControlError> {
        put_sealed(&self.0.seal(&message), buffer);
        Ok(())
    }
}

/// Takes the next encrypted message from the front of `buffer`, if all of it has arrived.
///
/// # Errors
///
/// When the length before it is that of no message.
pub(crate) fn next_sealed(buffer: &mut BytesMut) -> Result<Option<BytesMut>, Unopened> {
    if buffer.len() < LENGTH_BYTES {
        return Ok(None);
    }
    let length = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
    if length < TAG_BYTES {
        return Err(Unopened::Damaged);
    }
    if buffer.len() < LENGTH_BYTES + length {
        buffer.reserve(LENGTH_BYTES + length - buffer.len());
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Some(buffer.split_to(length)))
}

/// Appends an encrypted message with its length before it.
pub(crate) fn put_sealed(sealed: &[u8], buffer: &mut BytesMut) {
    let length = u16::try_from(sealed.len()).expect("a Noise message is shorter than that");
    buffer.put_u16(length);
    buffer.extend_from_slice(sealed);
}
