//! The control task: one for each stream, from the end of the handshake to the last message.
//!
//! The task sends the messages of the halves, receives those of the peer, sends keepalives, and detects a peer that
//! died or is silent. It never waits for the user of a half, so a reader that pauses does not look like a dead
//! one. Where its runtime may be blocked, a second task on another runtime
//! [sends the keepalives](connection::keep_alive).

use std::{io, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    LINGER,
    connection::{self, Control, ControlConnection, ControlError},
    data_watch::DataWatch,
    message::Message,
    state::{Failure, State},
};
use crate::Fault;

/// How long a broken data connection waits for the cause on the control connection. A peer that dies closes both
/// connections within the same moment of its kernel; this covers a slow network in between.
const CAUSE_LIMIT: Duration = Duration::from_millis(300);

/// The number of keepalives in the time after which a silent peer is dead: three may be late.
const PINGS_PER_TIMEOUT: u32 = 4;

/// The two time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// The silence after which the peer is dead.
    pub(crate) silence: Duration,
    /// The time between two pings of this end. They are sent beside other messages too, because each says how far the
    /// data path has got.
    pub(crate) ping: Duration,
}

impl Timing {
    /// Limits from the silence that this end and the peer allow.
    pub(crate) fn new(ours: Duration, theirs: Duration) -> Self {
        Self {
            silence: ours,
            ping: ours.min(theirs) / PINGS_PER_TIMEOUT,
        }
    }
}

/// Runs the control connection until the stream has ended, then closes it. The runtime `stand_in`, if there is one,
/// sends keepalives while this runtime is blocked.
///
/// If the future is dropped earlier, even before its first poll, or panics, the stream fails.
pub(crate) fn run(
    state: Arc<State>,
    control: Control,
    timing: Timing,
    stand_in: Option<Handle>,
) -> impl Future<Output = ()> + Send {
    let ends = EndOfTask(state);
    async move {
        let ends = ends;
        serve(&ends.0, control, timing, stand_in).await;
    }
}

/// Tells the state that the control task has ended, whether it returned, panicked, or was dropped with its runtime.
struct EndOfTask(Arc<State>);

impl Drop for EndOfTask {
    fn drop(&mut self) {
        self.0.control_task_ended();
    }
}

async fn serve(state: &Arc<State>, control: Control, timing: Timing, stand_in: Option<Handle>) {
    let connection = Arc::new(ControlConnection::new(control));
    if let Some(runtime) = stand_in {
        let (connection, state) = (Arc::clone(&connection), Arc::clone(state));
        runtime.spawn(connection::keep_alive(connection, state, timing.ping));
    }
    let exchanged = exchange_messages(state, &connection, timing).await;
    let Some(socket) = connection.take_socket() else {
        return;
    };
    if exchanged.is_ok() {
        // A peer that was silent for so long will hardly close now.
        let limit = if state.is_peer_silent() {
            CAUSE_LIMIT
        } else {
            LINGER
        };
        let _ = timeout(limit, finish(socket)).await;
    }
}

/// Sends and receives messages up to the last one. An error means that the connection is broken.
async fn exchange_messages(
    state: &State,
    connection: &ControlConnection,
    timing: Timing,
) -> io::Result<()> {
    let mut last_received = Instant::now();
    let mut next_ping = last_received + timing.ping;
    let mut watch = DataWatch::new(timing.silence);
    loop {
        let outgoing = state.outgoing();
        if !outgoing.messages.is_empty() {
            send(state, connection, outgoing.messages, Instant::now(), timing).await?;
        }
        // A peer that has sent Bye waits for the end of the connection. It does not wait for the user of this end to
        // drop the stream as well.
        if outgoing.last || state.peer_left() {
            return Ok(());
        }
        let wake = next_wake(state, last_received, next_ping, timing);
        let wake = watch.deadline().map_or(wake, |due| due.min(wake));
        tokio::select! {
            () = state.to_control.notified() => {}
            message = connection.next() => {
                last_received = Instant::now();
                receive(state, message)?;
                watch.note(&state.data, last_received);
            }
            () = sleep_until(wake) => {
                if wake.elapsed() > timing.ping {
                    // This process was stopped; the peer was not silent. Read its messages first.
                    last_received = Instant::now();
                    watch.restart();
                }
                check_time(state, connection, last_received, timing);
                state.check_dropped(timing.silence);
                let now = Instant::now();
                watch.check(state, now);
                if now >= next_ping {
                    next_ping = now + timing.ping;
                    send(state, connection, vec![state.data.ping()], now, timing).await?;
                }
            }
        }
    }
}

fn next_wake(state: &State, last_received: Instant, next_ping: Instant, timing: Timing) -> Instant {
    let silence = next_ping.min(last_received + timing.silence);
    let cause = state.suspicion().map(|(_, since)| since + CAUSE_LIMIT);
    let dropped = state.dropped_deadline(timing.silence);
    let sooner = cause.into_iter().chain(dropped).min();
    sooner.map_or(silence, |due| silence.min(Instant::from_std(due)))
}

/// Fails the stream when a time limit has passed.
fn check_time(
    state: &State,
    connection: &ControlConnection,
    last_received: Instant,
    timing: Timing,
) {
    if let Some((fault, since)) = state.suspicion() {
        if since.elapsed() >= CAUSE_LIMIT {
            state.fail(Failure::Fault(fault));
        }
    }
    if last_received.elapsed() >= timing.silence {
        // A peer sends messages whole: one whose end never arrives has a damaged length.
        let fault = if connection.is_between_messages() {
            Fault::PeerSilent(timing.silence)
        } else {
            Fault::Corrupt("a control message never came to its end")
        };
        state.fail(Failure::Fault(fault));
    }
}

async fn send(
    state: &State,
    connection: &ControlConnection,
    messages: Vec<Message>,
    now: Instant,
    timing: Timing,
) -> io::Result<()> {
    let mut sending = pin!(connection.send(messages, now));
    // Nearly always the connection takes all of it at once, and no timer is needed.
    let sent = match futures::poll!(sending.as_mut()) {
        Poll::Ready(sent) => Ok(sent),
        // The peer's control task always reads, and the pools bound what can be unread. A send that waits this long
        // means that the peer is gone.
        Poll::Pending => timeout(timing.silence, sending).await,
    };
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => read_remaining(state, connection, error).await,
        Err(_) => {
            state.fail(Failure::Fault(Fault::PeerSilent(timing.silence)));
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

/// Reads what the peer sent before it closed the connection, which tells more than the failed send.
async fn read_remaining(
    state: &State,
    connection: &ControlConnection,
    error: ControlError,
) -> io::Result<()> {
    while !state.failed() && !state.peer_left() {
        let next = timeout(CAUSE_LIMIT, connection.next()).await;
        if receive(state, next.unwrap_or(None)).is_err() {
            break;
        }
    }
    Err(error.into())
}

/// Handles one message, or the end of the connection.
fn receive(state: &State, message: Option<Result<Message, ControlError>>) -> io::Result<()> {
    match message {
        Some(Ok(message)) => {
            state.receive(message);
            Ok(())
        }
        Some(Err(ControlError::Unopened(unopened))) => {
            state.fail(Failure::Fault(Fault::Corrupt(unopened.text())));
            Ok(())
        }
        Some(Err(ControlError::Io(error))) => Err(lost(state, error)),
        None => {
            let closed = "its connection closed without a goodbye";
            Err(lost(
                state,
                io::Error::new(io::ErrorKind::UnexpectedEof, closed),
            ))
        }
    }
}

fn lost(state: &State, error: io::Error) -> io::Error {
    let kind = error.kind();
    state.fail(Failure::Fault(Fault::PeerDied(Arc::new(error))));
    kind.into()
}

/// Closes a connection after its last message has arrived.
pub(crate) async fn close(socket: TcpStream) {
    let _ = timeout(LINGER, finish(socket)).await;
}

/// Sends everything, and waits until the peer has closed its side.
async fn finish(mut socket: TcpStream) -> io::Result<()> {
    socket.shutdown().await?;
    let mut rest = [0; 4096];
    while socket.read(&mut rest).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_util::codec::Framed;

    use super::*;
    use crate::{
        Direction, Error, Key,
        transport::control::{
            connection::Codec,
            noise::{Initiator, Session, respond},
        },
    };

    const TIMING: Timing = Timing {
        silence: Duration::from_secs(3600),
        ping: Duration::from_secs(900),
    };

    fn sessions() -> (Session, Session) {
        let key = Key::generate().unwrap().key().clone();
        let (initiator, first) = Initiator::start(&key, b"");
        let (acceptor, reply) = respond(&key, b"", &first).unwrap().reply();
        (initiator.finish(&reply).unwrap(), acceptor)
    }

    /// Returns the two ends of a control connection.
    async fn connection() -> (Control, Control) {
        let (ours, theirs) = sessions();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (dialed, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (accepted, _) = accepted.unwrap();
        (
            Framed::new(dialed.unwrap(), Codec(ours)),
            Framed::new(accepted, Codec(theirs)),
        )
    }

    fn state() -> Arc<State> {
        State::new("hostB".to_owned(), Direction::Both, 2)
    }

    /// Checks that both halves fail because the control task ended.
    fn assert_both_fail(state: &State) {
        assert!(matches!(
            state.send_error(),
            Some(Error::Send {
                fault: Fault::ControlTask,
                ..
            })
        ));
        assert!(matches!(
            state.receive_error(),
            Some(Error::Receive {
                fault: Fault::ControlTask,
                ..
            })
        ));
        assert!(state.ended.is_cancelled());
    }

    #[tokio::test]
    async fn a_panic_of_the_control_task_fails_the_stream() {
        let (state, (ours, _theirs)) = (state(), connection().await);
        let task = tokio::spawn(run(Arc::clone(&state), ours, TIMING, None));
        // No message is that long.
        let mut slots = vec![u32::MAX; 20_000];
        state.grant(&mut slots, usize::MAX).unwrap();
        assert!(task.await.unwrap_err().is_panic());
        assert_both_fail(&state);
    }

    #[tokio::test]
    async fn a_control_task_that_is_never_polled_fails_the_stream() {
        let (state, (ours, _theirs)) = (state(), connection().await);
        drop(run(Arc::clone(&state), ours, TIMING, None));
        assert_both_fail(&state);
    }

    #[tokio::test]
    async fn a_goodbye_is_no_failure() {
        let (state, (ours, theirs)) = (state(), connection().await);
        let peer = self::state();
        for sent in [&state, &peer] {
            sent.stop(0);
        }
        let tasks = [(Arc::clone(&state), ours), (Arc::clone(&peer), theirs)]
            .map(|(state, control)| tokio::spawn(run(state, control, TIMING, None)));
        for end in [&state, &peer] {
            end.interrupted().await;
            end.release_sender(true);
            end.release_receiver(0, false);
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(!state.failed() && !peer.failed());
    }
}
