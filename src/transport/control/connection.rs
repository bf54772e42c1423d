//! The control connection of a running stream, and its task. Each message is a length of two bytes, then one Noise
//! message.
//!
//! The task sends the messages of the halves, receives those of the peer, sends keepalives, and detects a peer that
//! died or is silent. It never waits for the user of a half, so a reader that pauses does not look like a dead one.
//! Where its runtime may be blocked, for instance by a disk that stalls, a second task on another runtime sends the
//! keepalives ([`keep_alive`]).

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::codec::{Decoder, Encoder, Framed};

use super::{
    LINGER, connection,
    data_watch::DataWatch,
    message::Message,
    noise::{Session, TAG_BYTES, Unopened},
    reserve::Reserve,
    state::{State, StreamFault},
};
use crate::Fault;

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
    /// Cancel safe: a partly read message stays buffered for the next call.
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
    /// Not cancel safe: messages may be lost, and one may be sent in part. Nothing may be sent after that.
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
        poll_fn(|cx| {
            let mut state = self.lock();
            let Some(control) = &mut state.control else {
                return Poll::Ready(Ok(()));
            };
            // All are sealed at once: a connection in reserve sends those again that are lost with this one.
            messages.try_for_each(|message| control.start_send_unpin(message))?;
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

    /// Keeps the messages that the peer has not confirmed from now on.
    pub(super) fn keep_messages(&self) {
        if let Some(control) = &mut self.lock().control {
            control.codec_mut().kept = Some(VecDeque::new());
        }
    }

    /// Returns the number of messages that have been received.
    pub(super) fn received(&self) -> u64 {
        let state = self.lock();
        let control = state.control.as_ref();
        control.map_or(0, |control| control.codec().received)
    }

    /// Returns true if the peer keeps so many messages that it should learn that they have arrived.
    fn owes_word(&self) -> bool {
        let state = self.lock();
        let codec = state.control.as_ref().map(Framed::codec);
        codec.is_some_and(|codec| {
            codec.kept.is_some() && codec.received >= codec.confirmed + MESSAGES_PER_PING
        })
    }

    /// Goes on over another connection, to a peer that has received `received` messages.
    pub(super) fn go_on_over(&self, socket: TcpStream, received: u64) -> io::Result<()> {
        let mut state = self.lock();
        let control = state.control.take();
        let mut codec = control
            .ok_or(io::ErrorKind::NotConnected)?
            .into_parts()
            .codec;
        let left = codec.confirm(received)?;
        if codec.kept.as_ref().map(|kept| kept.len() as u64) != Some(left) {
            return Err(io::Error::other(
                "the peer lacks messages that it has confirmed",
            ));
        }
        let mut parts = Framed::new(socket, codec).into_parts();
        for sealed in parts.codec.kept.iter().flatten() {
            put_sealed(sealed, &mut parts.write_buf);
        }
        state.control = Some(Framed::from_parts(parts));
        state.is_busy = false;
        Ok(())
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

pub(crate) type Control = Framed<TcpStream, Codec>;

/// Encrypts and decrypts the control connection.
pub(crate) struct Codec {
    session: Session,
    /// The number of messages that have been sent, and received.
    sent: u64,
    received: u64,
    /// The number of received messages that the last ping told.
    confirmed: u64,
    /// The last messages that were sent, sealed, which the peer has not confirmed. None if there is no connection in
    /// reserve.
    kept: Option<VecDeque<Vec<u8>>>,
}

/// The number of messages after which a peer that keeps them learns that they have arrived.
const MESSAGES_PER_PING: u64 = 64;

/// The most messages that an end keeps: many times more than are under way.
const MOST_KEPT: usize = 4096;

impl Codec {
    /// The codec of a connection over which nothing has been sent.
    pub(crate) fn new(session: Session) -> Self {
        Self {
            session,
            sent: 0,
            received: 0,
            confirmed: 0,
            kept: None,
        }
    }

    /// Drops the messages that the peer has received, when it has received so many in all, and returns the number of
    /// the others. A ping that is sent again tells less than is known already.
    fn confirm(&mut self, received: u64) -> io::Result<u64> {
        let left = self.sent.checked_sub(received);
        let left =
            left.ok_or_else(|| io::Error::other("the peer has more messages than were sent"))?;
        if let Some(kept) = &mut self.kept {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            kept.drain(..kept.len().saturating_sub(most));
        }
        Ok(left)
    }
}

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
        let Some(sealed) = next_sealed(buffer)? else {
            return Ok(None);
        };
        let message = self.session.open(&sealed)?;
        self.received += 1;
        if let Message::Ping { messages, .. } = message {
            self.confirm(messages)?;
        }
        Ok(Some(message))
    }

    /// Treats a connection that ends inside a message as one that ends: the peer is gone.
    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, ControlError> {
        self.decode(buffer)
    }
}

impl Encoder<Message> for Codec {
    type Error = ControlError;

    fn encode(&mut self, mut message: Message, buffer: &mut BytesMut) -> Result<(), ControlError> {
        if let Message::Ping { messages, .. } = &mut message {
            (*messages, self.confirmed) = (self.received, self.received);
        }
        let sealed = self.session.seal(&message);
        put_sealed(&sealed, buffer);
        self.sent += 1;
        if let Some(kept) = &mut self.kept {
            if kept.len() == MOST_KEPT {
                return Err(io::Error::other("the peer confirms no messages").into());
            }
            kept.push_back(sealed);
        }
        Ok(())
    }
}

/// Takes the next encrypted message from the front of `buffer`, if all of it has arrived.
/// Fails when the length before it is that of no message.
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
    reserve: Vec<TcpStream>,
    timing: Timing,
    stand_in: Option<Handle>,
) -> impl Future<Output = ()> + Send {
    let ends = EndOfTask(state);
    async move {
        let ends = ends;
        let reserve = Reserve::new(reserve);
        serve(&ends.0, control, reserve, timing, stand_in).await;
    }
}

/// Tells the state that the control task has ended, whether it returned, panicked, or was dropped with its runtime.
struct EndOfTask(Arc<State>);

impl Drop for EndOfTask {
    fn drop(&mut self) {
        self.0.control_task_ended();
    }
}

async fn serve(
    state: &Arc<State>,
    control: Control,
    mut reserve: Reserve,
    timing: Timing,
    stand_in: Option<Handle>,
) {
    let connection = Arc::new(ControlConnection::new(control));
    if !reserve.is_empty() {
        connection.keep_messages();
    }
    if let Some(runtime) = stand_in {
        let (connection, state) = (Arc::clone(&connection), Arc::clone(state));
        runtime.spawn(connection::keep_alive(connection, state, timing.ping));
    }
    let is_whole = loop {
        let Err(error) = exchange_messages(state, &connection, &reserve, timing).await else {
            break true;
        };
        // Of a failure the peer learns over the reserve too.
        if state.peer_left() || state.is_peer_silent() || (state.failed() && reserve.is_empty()) {
            break false;
        }
        let died = Fault::PeerDied(Arc::new(error));
        let replaced = tokio::select! {
            replaced = reserve.replace(&connection, state) => replaced.map_err(|_| died),
            // A lost network has been silent for a quarter of the time already.
            () = sleep(timing.silence / 4 * 3) => Err(Fault::PeerSilent(timing.silence)),
            () = async { state.interrupted().await; sleep(LINGER).await } => Err(died),
        };
        if let Err(fault) = replaced {
            state.fail(StreamFault::Found(fault));
            break false;
        }
    };
    let Some(socket) = connection.take_socket() else {
        return;
    };
    if is_whole {
        // A peer that was silent for so long will hardly close now.
        let limit = if state.is_peer_silent() {
            CAUSE_LIMIT
        } else {
            LINGER
        };
        let _ = timeout(limit, finish(socket)).await;
    }
}

/// Sends and receives messages up to the last one. An error means that the connection is broken: a stream that has not
/// failed may go on over one of the reserve.
async fn exchange_messages(
    state: &State,
    connection: &ControlConnection,
    reserve: &Reserve,
    timing: Timing,
) -> io::Result<()> {
    let mut last_received = Instant::now();
    let mut next_ping = last_received + timing.ping;
    let mut watch = DataWatch::new(timing.silence);
    if reserve.network() > 0 {
        // What the peer has not received.
        send(
            state,
            connection,
            reserve,
            Vec::new(),
            last_received,
            timing,
        )
        .await?;
    }
    loop {
        reserve.check(state)?;
        let outgoing = state.outgoing();
        if !outgoing.messages.is_empty() {
            let now = Instant::now();
            send(state, connection, reserve, outgoing.messages, now, timing).await?;
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
                if connection.owes_word() {
                    next_ping = last_received;
                }
            }
            _ = reserve.called(reserve.network()) => {
                return Err(io::Error::other("the peer goes on over another network"));
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
                    let ping = vec![state.data.ping()];
                    send(state, connection, reserve, ping, now, timing).await?;
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
            state.fail(StreamFault::Found(fault));
        }
    }
    if last_received.elapsed() >= timing.silence {
        // A peer sends messages whole: one whose end never arrives has a damaged length.
        let fault = if connection.is_between_messages() {
            Fault::PeerSilent(timing.silence)
        } else {
            Fault::Corrupt("a control message never came to its end")
        };
        state.fail(StreamFault::Found(fault));
    }
}

async fn send(
    state: &State,
    connection: &ControlConnection,
    reserve: &Reserve,
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
        Poll::Pending => tokio::select! {
            sent = timeout(timing.silence, sending) => sent,
            error = reserve.lost(state) => return Err(error),
        },
    };
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => read_remaining(state, connection, error).await,
        Err(_) => {
            state.fail(StreamFault::Found(Fault::PeerSilent(timing.silence)));
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
        receive(state, next.unwrap_or(None))?;
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
            state.fail(StreamFault::Found(Fault::Corrupt(unopened.text())));
            Ok(())
        }
        Some(Err(ControlError::Io(error))) => Err(error),
        None => {
            let closed = "its connection closed without a goodbye";
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed))
        }
    }
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
    use std::net::Ipv4Addr;

    use socket2::SockRef;
    use tokio::net::TcpListener;
    use tokio_util::codec::Framed;

    use super::*;
    use crate::transport::control::state::RailState;
    use crate::{
        Direction, Error, Key,
        transport::control::{
            connection::Codec,
            data_watch::DataProgress,
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

    async fn connection() -> (Control, Control) {
        let (ours, theirs) = sessions();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (dialed, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (accepted, _) = accepted.unwrap();
        (
            Framed::new(dialed.unwrap(), Codec::new(ours)),
            Framed::new(accepted, Codec::new(theirs)),
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
        let task = tokio::spawn(run(Arc::clone(&state), ours, Vec::new(), TIMING, None));
        // No message is that long.
        let mut slots = vec![u32::MAX; 20_000];
        let granted = RailState::new(&state, 0).grant(&mut slots, usize::MAX);
        granted.unwrap();
        assert!(task.await.unwrap_err().is_panic());
        assert_both_fail(&state);
    }

    #[tokio::test]
    async fn a_control_task_that_is_never_polled_fails_the_stream() {
        let (state, (ours, _theirs)) = (state(), connection().await);
        drop(run(Arc::clone(&state), ours, Vec::new(), TIMING, None));
        assert_both_fail(&state);
    }

    /// Waits until the peer of a stream has granted so many slots.
    async fn granted(state: &RailState, slots: usize) {
        while state.credits_left() < slots {
            tokio::task::yield_now().await;
        }
    }

    /// The messages go on where they were when the control connection is closed, or its network is lost at one end.
    #[tokio::test]
    async fn a_lost_control_connection_is_replaced() {
        for is_closed in [true, false] {
            let (state, peer) = (self::state(), self::state());
            let (ours, theirs) = connection().await;
            let (reserve, their_reserve) = connection().await;
            let socket = SockRef::from(ours.get_ref()).try_clone().unwrap();
            let networks = vec![Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into()];
            for end in [&state, &peer] {
                end.set_networks(networks.clone(), 2);
                RailState::new(end, 0).set_peer_slots(8);
            }
            let tasks = [
                (Arc::clone(&state), ours, reserve),
                (Arc::clone(&peer), theirs, their_reserve),
            ]
            .map(|(state, control, reserve)| {
                let reserve = vec![reserve.into_inner()];
                tokio::spawn(run(state, control, reserve, TIMING, None))
            });
            let rails = [&state, &peer].map(|state| RailState::new(state, 0));
            for (from, to) in [(0, 1), (1, 0)] {
                rails[from].grant(&mut vec![0, 1], 8).unwrap();
                granted(&rails[to], 2).await;
            }
            if is_closed {
                socket.shutdown(std::net::Shutdown::Both).unwrap();
            } else {
                state.lose_network(0).unwrap();
            }
            for (from, to) in [(1, 0), (0, 1)] {
                rails[from].grant(&mut vec![2, 3, 4], 8).unwrap();
                granted(&rails[to], 5).await;
            }
            for end in [&state, &peer] {
                end.stop(0);
            }
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

    /// A message is dropped when the peer has confirmed it, and those that are kept are sent again in order.
    #[test]
    fn messages_are_kept_until_they_are_confirmed() {
        let (ours, theirs) = sessions();
        let (mut ours, mut theirs) = (Codec::new(ours), Codec::new(theirs));
        ours.kept = Some(VecDeque::new());
        let mut buffer = BytesMut::new();
        for offset in 0..5 {
            let message = Message::Stop { offset };
            ours.encode(message, &mut buffer).unwrap();
        }
        for offset in 0..3 {
            let message = theirs.decode(&mut buffer).unwrap();
            assert_eq!(message, Some(Message::Stop { offset }));
        }
        // The rest is lost with the connection.
        assert_eq!(ours.confirm(theirs.received).unwrap(), 2);
        let mut buffer = BytesMut::new();
        let kept = ours.kept.iter().flatten();
        kept.for_each(|sealed| put_sealed(sealed, &mut buffer));
        for offset in 3..5 {
            let message = theirs.decode(&mut buffer).unwrap();
            assert_eq!(message, Some(Message::Stop { offset }));
        }
        assert!(ours.confirm(6).is_err());
        // A ping that is sent again.
        assert_eq!(ours.confirm(2).unwrap(), 3);
        assert_eq!(ours.kept.as_ref().map(VecDeque::len), Some(2));
        let ping = DataProgress::default().ping();
        theirs.encode(ping, &mut buffer).unwrap();
        ours.decode(&mut buffer).unwrap();
        assert_eq!(ours.kept.map(|kept| kept.len()), Some(0));
    }

    #[tokio::test]
    async fn a_goodbye_is_no_failure() {
        let (state, (ours, theirs)) = (state(), connection().await);
        let peer = self::state();
        for sent in [&state, &peer] {
            sent.stop(0);
        }
        let tasks = [(Arc::clone(&state), ours), (Arc::clone(&peer), theirs)]
            .map(|(state, control)| tokio::spawn(run(state, control, Vec::new(), TIMING, None)));
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
