//! The control task: one per stream, from the handshake to the last goodbye.
//!
//! It carries what the halves have to tell the peer, takes what the peer tells, keeps the
//! connection warm and notices a peer that died or fell silent. Nothing the users do or leave
//! undone holds it up, so a paused reader never looks like a dead one. Where its runtime may be blocked,
//! another one [stands in](connection::keep_alive) for it.

use std::{io, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    codec::{Control, ControlError},
    connection::{self, ControlConnection},
    message::Message,
    state::{Failure, State},
};
use crate::Fault;

/// How long a broken data connection waits for its true cause. A peer that dies closes both
/// connections within the same moment of its kernel; this covers a slow network in between.
const CAUSE_LIMIT: Duration = Duration::from_millis(300);

/// How long the last frame may take to arrive: the connection is read to its end before it is
/// closed, since closing with unread bytes sends a reset that would overtake it.
const LINGER: Duration = Duration::from_secs(2);

/// Keepalives for each silence limit: three may be lost or late.
const PINGS_PER_TIMEOUT: u32 = 4;

/// The two time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// A peer that has been silent for so long is dead.
    pub(crate) silence: Duration,
    /// Something is sent at least so often.
    pub(crate) ping: Duration,
}

impl Timing {
    /// Limits for this end's and the peer's `--timeout`.
    pub(crate) fn new(ours: Duration, theirs: Duration) -> Self {
        Self {
            silence: ours,
            ping: ours.min(theirs) / PINGS_PER_TIMEOUT,
        }
    }
}

/// Runs the control connection until the stream has ended, then closes it. While this runtime is blocked,
/// `stand_in` keeps the connection warm.
pub(crate) async fn run(
    state: Arc<State>,
    control: Control,
    timing: Timing,
    stand_in: Option<Handle>,
) {
    // However this ends, also by the runtime's own end, nobody waits for it in vain.
    let _ended = state.ended.clone().drop_guard();
    let connection = Arc::new(ControlConnection::new(control));
    if let Some(runtime) = stand_in {
        let (connection, state) = (Arc::clone(&connection), Arc::clone(&state));
        runtime.spawn(connection::keep_alive(connection, state, timing.ping));
    }
    let exchanged = exchange_messages(&state, &connection, timing).await;
    let Some(socket) = connection.take_socket() else {
        return;
    };
    if exchanged.is_ok() {
        // Who was silent for so long will hardly answer now: no reason to make the user wait.
        let limit = if state.is_peer_silent() {
            CAUSE_LIMIT
        } else {
            LINGER
        };
        let _ = timeout(limit, finish(socket)).await;
    }
}

/// Everything up to the last message. An error means that the connection is of no use any more.
async fn exchange_messages(
    state: &State,
    connection: &ControlConnection,
    timing: Timing,
) -> io::Result<()> {
    let mut last_received = Instant::now();
    let mut next_ping = last_received + timing.ping;
    loop {
        let outgoing = state.outgoing();
        if !outgoing.messages.is_empty() {
            let now = Instant::now();
            next_ping = now + timing.ping;
            send(state, connection, outgoing.messages, now, timing).await?;
        }
        // A peer that has said goodbye has had all there was to tell it, and waits for the end of the
        // connection: not for the user of this end to let go of the stream as well.
        if outgoing.last || state.peer_left() {
            return Ok(());
        }
        let wake = next_wake(state, last_received, next_ping, timing);
        tokio::select! {
            () = state.to_control.notified() => {}
            message = connection.next() => {
                last_received = Instant::now();
                receive(state, message)?;
            }
            () = sleep_until(wake) => {
                if wake.elapsed() > timing.ping {
                    // This process was stopped, not the peer silent: hear it out first.
                    last_received = Instant::now();
                }
                check_time(state, connection, last_received, timing);
                let now = Instant::now();
                if now >= next_ping {
                    next_ping = now + timing.ping;
                    send(state, connection, vec![Message::Ping], now, timing).await?;
                }
            }
        }
    }
}

fn next_wake(state: &State, last_received: Instant, next_ping: Instant, timing: Timing) -> Instant {
    let silence = next_ping.min(last_received + timing.silence);
    match state.suspicion() {
        Some((_, since)) => silence.min(Instant::from_std(since) + CAUSE_LIMIT),
        None => silence,
    }
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
        // Messages arrive whole or not at all: one whose end never comes has lied about its length.
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
    // Nearly always the connection takes it all at once, and no clock has to be looked at.
    let sent = match futures::poll!(sending.as_mut()) {
        Poll::Ready(sent) => Ok(sent),
        // The peer's control task always reads, and what may be unread of it is bounded by the pools:
        // a send that waits means that nobody is there.
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

/// Sending failed: what the peer said before it closed is still to be read, and tells more.
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

/// Takes one message, or the end of the connection.
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

/// Closes a connection so that the last message arrives.
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
