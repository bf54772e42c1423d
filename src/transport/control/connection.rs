//! The control connection of a stream that runs, shared by the control task and its stand-in.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{
    codec::{Control, ControlError},
    message::Message,
    state::State,
};

/// See the module.
pub(super) struct ControlConnection(Mutex<ConnectionState>);

struct ConnectionState {
    /// None once it has been hung up.
    control: Option<Control>,
    /// The control task is about to send, or does.
    is_busy: bool,
    /// When something was last sent.
    sent: Instant,
}

impl ControlConnection {
    /// A connection over which something has just been sent.
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

    /// The peer's next message; none at the end of the connection.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was read of a message waits for the next call.
    pub(super) async fn next(&self) -> Option<Result<Message, ControlError>> {
        poll_fn(|cx| match &mut self.lock().control {
            Some(control) => control.poll_next_unpin(cx),
            None => Poll::Ready(None),
        })
        .await
    }

    /// Whether nothing is left of a message whose end has not come.
    pub(super) fn is_between_messages(&self) -> bool {
        let ends = self.lock();
        ends.control
            .as_ref()
            .is_none_or(|control| control.read_buffer().is_empty())
    }

    /// Sends `messages` in order, from `now` on.
    ///
    /// # Cancel safety
    ///
    /// Not safe: some may be left behind, and one half sent. Nothing may be sent after that.
    pub(super) async fn send(
        &self,
        messages: Vec<Message>,
        now: Instant,
    ) -> Result<(), ControlError> {
        {
            let mut ends = self.lock();
            (ends.is_busy, ends.sent) = (true, now);
        }
        let mut messages = messages.into_iter();
        let mut next = messages.next();
        poll_fn(|cx| {
            let mut ends = self.lock();
            let Some(control) = &mut ends.control else {
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
            ends.is_busy = false;
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Says that this end lives, if the control task, which should say something every `ping`, has not for much
    /// longer, and is not about to.
    fn keep_alive(&self, ping: Duration) {
        let mut ends = self.lock();
        if ends.is_busy || ends.sent.elapsed() < ping + ping / 2 {
            return;
        }
        ends.sent = Instant::now();
        let Some(control) = &mut ends.control else {
            return;
        };
        // What the connection does not take at once is for the control task, which finds out what is
        // wrong with it.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(Ok(())) = control.poll_ready_unpin(&mut cx) {
            if control.start_send_unpin(Message::Ping).is_ok() {
                let _ = control.poll_flush_unpin(&mut cx);
            }
        }
    }

    /// Takes the connection away, to be closed.
    pub(super) fn take_socket(&self) -> Option<TcpStream> {
        self.lock().control.take().map(Control::into_inner)
    }
}

/// Keeps the connection warm while the control task's runtime is blocked, as by a disk that stalls, until
/// the stream has ended.
pub(super) async fn keep_alive(
    connection: Arc<ControlConnection>,
    state: Arc<State>,
    ping: Duration,
) {
    let looks = async {
        loop {
            sleep(ping / 2).await;
            connection.keep_alive(ping);
        }
    };
    state.ended.run_until_cancelled(looks).await;
}
