//! One end of an edge that goes through ssh: carries connections to and from 127.0.0.1 over two pipes, in the frames of
//! a tunnel ([`mux`](super::mux)).
//!
//! Each connection has a window, so one that stalls keeps back no other, and the memory of a relay is bounded. A window
//! begins small and at most doubles with each of its lengths, so on a slow line no message falls behind the data by more
//! than the time for which the connection has lasted: keepalives of the streams inside arrive at most half as often as
//! they are sent.
//!
//! One future does all of it. The two relays send each other empty messages: one that receives nothing for its timeout
//! ends.

use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Interval, MissedTickBehavior, interval},
};

use super::mux::{
    Mux, MuxEnd, MuxEvent, MuxFault, WindowBudget,
    frame::{FRAME_HEADER_BYTES, FlowId, FrameDecoder, FrameHead, MAX_DATA_BYTES},
};
use crate::ssh::agent::relay::{RelayEnd, RelayPort};

/// The most connections of one relay. A stream has two and a probe; the rest is for strangers on the same host.
const MOST_CONNECTIONS: usize = 256;

/// The data frames that are written at a time. Beyond a quarter of a megabyte a system call costs nothing beside its copy.
const MOST_FRAMES: usize = 4;

/// The bytes that are kept for frames other than data before the data.
const CONTROL_BYTES: usize = 8 << 10;

/// The bytes that are read from the session at a time.
const INPUT_BYTES: usize = 256 << 10;

/// The messages that a relay sends in each timeout, as many as the keepalives of a stream.
const TICKS: u32 = 4;

/// Carries the connections of `end` over `input` and `output`, until `input` ends. All connections end with it.
/// Fails if the session breaks, the other relay breaks the protocol, or nothing arrives for the timeout.
/// Dropping the future closes all connections.
pub(crate) async fn run<R, W>(end: RelayEnd, input: R, output: W) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut relay = Relay::new(end, input, output);
    std::future::poll_fn(|cx| relay.poll(cx)).await
}

struct Relay<R, W> {
    port: RelayPort,
    input: R,
    output: W,
    mux: Mux,
    decoder: FrameDecoder,
    connections: BTreeMap<FlowId, Connection>,
    /// The connections that are being made for the other relay.
    connecting: FuturesUnordered<BoxFuture<'static, (FlowId, io::Result<TcpStream>)>>,
    received: Vec<u8>,
    /// The frames that are being written, from `written` to `filled`.
    frames: Vec<u8>,
    written: usize,
    filled: usize,
    /// The connection that sends after the others.
    last: FlowId,
    ticks: Interval,
    /// The ticks since something arrived.
    silent_ticks: u32,
    owes_message: bool,
}

/// One connection to a program on this host: an end of a stream.
struct Connection {
    socket: TcpStream,
    /// Received bytes that the socket has not taken; its window bounds them.
    waiting: BytesMut,
    /// The socket has no more bytes to send.
    is_read: bool,
    /// The other relay sends no more bytes.
    is_received: bool,
    /// The socket was told so.
    is_shut: bool,
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        // A small message waits for no acknowledgement. A socket without the option works as well.
        let _ = socket.set_nodelay(true);
        Self {
            socket,
            waiting: BytesMut::new(),
            is_read: false,
            is_received: false,
            is_shut: false,
        }
    }
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Relay<R, W> {
    fn new(end: RelayEnd, input: R, output: W) -> Self {
        let RelayEnd { port, timeout } = end;
        let numbers = match &port {
            RelayPort::Listen(_) => MuxEnd::Odd,
            RelayPort::Connect(_) => MuxEnd::Even,
        };
        let mut ticks = interval((timeout / TICKS).max(Duration::from_millis(10)));
        // A process that was stopped waits again.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            port,
            input,
            output,
            mux: Mux::new(numbers, &Arc::<WindowBudget>::default()),
            decoder: FrameDecoder::default(),
            connections: BTreeMap::new(),
            connecting: FuturesUnordered::new(),
            received: vec![0; INPUT_BYTES],
            frames: vec![0; CONTROL_BYTES + MOST_FRAMES * (FRAME_HEADER_BYTES + MAX_DATA_BYTES)],
            written: 0,
            filled: 0,
            last: 0,
            ticks,
            silent_ticks: 0,
            owes_message: false,
        }
    }

    /// Does all that can be done now. Completes when `input` has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.poll_clock(cx)?;
            let mut moves = self.poll_new(cx)?;
            match self.poll_input(cx)? {
                Poll::Ready(0) => return Poll::Ready(Ok(())),
                Poll::Ready(_) => moves = true,
                Poll::Pending => {}
            }
            moves |= self.poll_sockets(cx);
            moves |= self.poll_output(cx)?.is_ready();
            if !moves {
                return Poll::Pending;
            }
        }
    }

    /// Lets a message be sent at each tick, and fails if nothing has arrived for too long.
    fn poll_clock(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.ticks.poll_tick(cx).is_ready() {
            self.owes_message = true;
            // The first tick is at the beginning.
            self.silent_ticks += 1;
            if self.silent_ticks > TICKS + 1 {
                let silence = self.ticks.period() * TICKS;
                let text = format!("received nothing from the other end for {silence:.1?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
        Ok(())
    }

    /// Takes over new connections. Returns true if there was one.
    fn poll_new(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut found = false;
        while let RelayPort::Listen(listener) = &self.port
            && self.mux.count() < MOST_CONNECTIONS
            && let Poll::Ready(accepted) = listener.poll_accept(cx)
        {
            let (socket, _) = accepted?;
            // Without memory for it the connection is closed.
            if let Some(id) = self.mux.open(Vec::new()) {
                self.connections.insert(id, Connection::new(socket));
            }
            found = true;
        }
        while let Poll::Ready(Some((id, connected))) = self.connecting.poll_next_unpin(cx) {
            match connected {
                Ok(socket) if self.mux.is_live(id) => {
                    self.connections.insert(id, Connection::new(socket));
                    self.mux.accept(id);
                }
                Ok(_) => {}
                Err(error) => self.mux.refuse(id, error.to_string().into_bytes()),
            }
            found = true;
        }
        Ok(found)
    }

    /// Reads frames once, and handles them. Returns the number of bytes; 0 at the end.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut received = std::mem::take(&mut self.received);
        let mut buffer = ReadBuf::new(&mut received);
        let read = Pin::new(&mut self.input).poll_read(cx, &mut buffer);
        let mut bytes = buffer.filled();
        let count = bytes.len();
        if count > 0 {
            self.silent_ticks = 0;
        }
        let mut handled = Ok(());
        while handled.is_ok() {
            match self.decoder.next(&mut bytes) {
                Ok(Some(piece)) => {
                    let event = self.mux.receive(piece);
                    handled = event.map(|event| {
                        Self::handle(
                            event,
                            &mut self.mux,
                            &mut self.connections,
                            &self.connecting,
                            &self.port,
                            cx,
                        );
                    });
                }
                Ok(None) => break,
                Err(fault) => handled = Err(fault),
            }
        }
        self.received = received;
        handled.map_err(invalid)?;
        read.map_ok(|()| count)
    }

    #[expect(clippy::needless_pass_by_value, reason = "an event is used up")]
    fn handle(
        event: MuxEvent<'_>,
        mux: &mut Mux,
        connections: &mut BTreeMap<FlowId, Connection>,
        connecting: &FuturesUnordered<BoxFuture<'static, (FlowId, io::Result<TcpStream>)>>,
        port: &RelayPort,
        cx: &mut Context<'_>,
    ) {
        match event {
            MuxEvent::None | MuxEvent::Message(_) | MuxEvent::Opened(_) | MuxEvent::Writable(_) => {
            }
            MuxEvent::Open(id, _) => match port {
                RelayPort::Connect(port) if mux.count() <= MOST_CONNECTIONS => {
                    let dialing = TcpStream::connect((Ipv4Addr::LOCALHOST, *port));
                    connecting.push(dialing.map(move |made| (id, made)).boxed());
                }
                _ => mux.refuse(id, Vec::new()),
            },
            MuxEvent::Refused(id, _) => drop(connections.remove(&id)),
            MuxEvent::Data(id, bytes) => match connections.get_mut(&id) {
                Some(connection) => {
                    let taken = connection.write(bytes, cx);
                    settle(id, &taken, mux, connections);
                }
                // The program has closed the socket; the reset is on its way.
                None => mux.consume(id, bytes.len()),
            },
            MuxEvent::Fin(id) => {
                if let Some(connection) = connections.get_mut(&id) {
                    connection.is_received = true;
                }
            }
            MuxEvent::Reset(id) => {
                if let Some(connection) = connections.remove(&id) {
                    mux.consume(id, connection.waiting.len());
                }
            }
        }
    }

    /// Writes what waits for sockets, and ends what has ended. Returns true if something was written.
    fn poll_sockets(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moves = false;
        let is_due =
            |connection: &Connection| !connection.waiting.is_empty() || connection.is_received;
        let due = self
            .connections
            .iter()
            .filter(|(_, connection)| is_due(connection));
        let ids: Vec<_> = due.map(|(id, _)| *id).collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            if !connection.waiting.is_empty() {
                let taken = connection.write(&[], cx);
                moves |= !matches!(taken, Ok(0));
                settle(id, &taken, &mut self.mux, &mut self.connections);
            }
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            if connection.is_received && connection.waiting.is_empty() {
                if !std::mem::replace(&mut connection.is_shut, true) {
                    // It is never pending.
                    let _ = Pin::new(&mut connection.socket).poll_shutdown(cx);
                }
                if connection.is_read {
                    self.connections.remove(&id);
                }
            }
        }
        moves
    }

    /// Writes frames. Completes if some were written.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.written == self.filled {
            self.written = 0;
            self.filled = self.fill(cx);
            if self.filled == 0 {
                return Poll::Pending;
            }
        }
        let frames = &self.frames[self.written..self.filled];
        let count = std::task::ready!(Pin::new(&mut self.output).poll_write(cx, frames))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.written += count;
        Poll::Ready(Ok(()))
    }

    /// Puts the frames that are due into the buffer. Returns their length.
    fn fill(&mut self, cx: &mut Context<'_>) -> usize {
        if std::mem::take(&mut self.owes_message) {
            self.mux.send_message(Vec::new());
        }
        let mut filled = self.mux.write_control(&mut self.frames[..CONTROL_BYTES]);
        // The connections take turns, beginning with the one after the last that has sent.
        let after = self.connections.range(self.last + 1..).map(|(id, _)| *id);
        let before = self.connections.range(..=self.last).map(|(id, _)| *id);
        let turns: Vec<_> = after.chain(before).collect();
        for _ in 0..MOST_FRAMES {
            let mut has_sent = false;
            for &id in &turns {
                if self.frames.len() - filled < FRAME_HEADER_BYTES + MAX_DATA_BYTES {
                    return filled;
                }
                let count = self.fill_from(id, filled, cx);
                filled += count;
                if count > 0 {
                    (self.last, has_sent) = (id, true);
                }
            }
            if !has_sent {
                break;
            }
        }
        filled
    }

    /// Reads a data frame of a connection into the buffer at `filled`. Returns its length; 0 if there is none.
    fn fill_from(&mut self, id: FlowId, filled: usize, cx: &mut Context<'_>) -> usize {
        let sendable = usize::try_from(self.mux.sendable(id)).unwrap_or(usize::MAX);
        let Some(connection) = self.connections.get_mut(&id) else {
            return 0;
        };
        if sendable == 0 || connection.is_read {
            return 0;
        }
        let start = filled + FRAME_HEADER_BYTES;
        let end = start + sendable.min(MAX_DATA_BYTES);
        let mut buffer = ReadBuf::new(&mut self.frames[start..end]);
        match Pin::new(&mut connection.socket).poll_read(cx, &mut buffer) {
            Poll::Pending => 0,
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                connection.is_read = true;
                self.mux.finish(id);
                // The end is sent with the next frames.
                cx.waker().wake_by_ref();
                0
            }
            Poll::Ready(Ok(())) => {
                let count = buffer.filled().len();
                let head = FrameHead::data(id, count).encode();
                self.frames[filled..start].copy_from_slice(&head);
                self.mux.sent(id, count);
                FRAME_HEADER_BYTES + count
            }
            Poll::Ready(Err(error)) => {
                settle(id, &Err(error), &mut self.mux, &mut self.connections);
                cx.waker().wake_by_ref();
                0
            }
        }
    }
}

impl Connection {
    /// Writes what waits, and then `bytes`. What the socket does not take waits. Returns how much it took.
    fn write(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> io::Result<usize> {
        let mut taken = 0;
        while !self.waiting.is_empty() {
            match Pin::new(&mut self.socket).poll_write(cx, &self.waiting)? {
                Poll::Ready(count) => {
                    self.waiting.advance(count);
                    taken += count;
                }
                Poll::Pending => {
                    self.waiting.extend_from_slice(bytes);
                    return Ok(taken);
                }
            }
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match Pin::new(&mut self.socket).poll_write(cx, rest)? {
                Poll::Ready(count) => {
                    rest = &rest[count..];
                    taken += count;
                }
                Poll::Pending => {
                    self.waiting.extend_from_slice(rest);
                    break;
                }
            }
        }
        Ok(taken)
    }
}

/// Counts what the socket of a connection has taken, or resets the connection if its socket has failed.
fn settle(
    id: FlowId,
    taken: &io::Result<usize>,
    mux: &mut Mux,
    connections: &mut BTreeMap<FlowId, Connection>,
) {
    if let Ok(count) = taken {
        mux.consume(id, *count);
    } else {
        mux.reset(id);
        connections.remove(&id);
    }
}

fn invalid(fault: MuxFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split},
        net::TcpListener,
        task::JoinHandle,
    };

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Two relays that are joined, and a program at each end.
    struct Rig {
        /// Where the relay at the end that dials listens.
        near: u16,
        /// The listener of the other end.
        far: TcpListener,
        relays: Vec<JoinHandle<io::Result<()>>>,
    }

    impl Rig {
        async fn new() -> Self {
            let far = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let near = listener.local_addr().unwrap().port();
            let connect = RelayPort::Connect(far.local_addr().unwrap().port());
            // A pipe of the usual size.
            let ends = duplex(64 << 10);
            let relays = [(RelayPort::Listen(listener), ends.0), (connect, ends.1)];
            let relays = relays
                .into_iter()
                .map(|(port, pipe)| start(port, TIMEOUT, pipe));
            Self {
                near,
                far,
                relays: relays.collect(),
            }
        }

        /// Makes a connection through both relays. Returns its two ends.
        async fn connection(&self) -> (TcpStream, TcpStream) {
            let near = TcpStream::connect((Ipv4Addr::LOCALHOST, self.near)).await;
            let (far, _) = self.far.accept().await.unwrap();
            (near.unwrap(), far)
        }
    }

    fn start(port: RelayPort, timeout: Duration, pipe: DuplexStream) -> JoinHandle<io::Result<()>> {
        let (input, output) = split(pipe);
        tokio::spawn(run(RelayEnd { port, timeout }, input, output))
    }

    /// Sends bytes in both directions at once, and checks them and their ends.
    async fn exchange((near, far): (TcpStream, TcpStream), bytes: usize) {
        let content: Vec<u8> = (0..=250).cycle().take(bytes).collect();
        let half = |socket: TcpStream| {
            let content = content.clone();
            async move {
                let (mut read, mut write) = socket.into_split();
                let sending = async {
                    write.write_all(&content).await.unwrap();
                    write.shutdown().await.unwrap();
                };
                let mut found = Vec::new();
                let ((), received) = tokio::join!(sending, read.read_to_end(&mut found));
                received.unwrap();
                assert!(found == content, "{} bytes", found.len());
            }
        };
        tokio::join!(half(near), half(far));
    }

    #[tokio::test]
    async fn connections_pass_in_both_directions_with_their_ends() {
        let rig = Rig::new().await;
        let (one, other) = (rig.connection().await, rig.connection().await);
        // Large enough for both pipes to be full in both directions at once.
        tokio::join!(exchange(one, 9 << 20), exchange(other, 9 << 20));
        // A probe, which is closed at once.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, rig.near)).await);
        let (mut probe, _) = rig.far.accept().await.unwrap();
        assert_eq!(probe.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_stalls_keeps_no_other_back() {
        let rig = Rig::new().await;
        let (mut near, _far) = rig.connection().await;
        let other = rig.connection().await;
        // Its reader reads nothing: the window bounds what the relays hold.
        let flooding = async {
            loop {
                near.write_all(&[7; 1 << 10]).await.unwrap();
            }
        };
        tokio::select! {
            () = flooding => {}
            () = exchange(other, 1 << 20) => {}
        }
    }

    #[tokio::test]
    async fn the_end_of_one_relay_ends_the_other_and_all_connections() {
        let rig = Rig::new().await;
        let (mut near, mut far) = rig.connection().await;
        rig.relays[0].abort();
        assert!(!matches!(near.read(&mut [0]).await, Ok(1..)));
        assert!(!matches!(far.read(&mut [0]).await, Ok(1..)));
        for (relay, ended) in rig.relays.into_iter().zip([false, true]) {
            assert_eq!(relay.await.is_ok_and(|end| end.is_ok()), ended);
        }
    }

    #[tokio::test]
    async fn a_relay_that_receives_nothing_ends() {
        let (pipe, mut peer) = duplex(1 << 10);
        let relay = start(RelayPort::Connect(1), Duration::from_millis(200), pipe);
        let error = relay.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // It has sent messages of its own meanwhile.
        assert!(peer.read(&mut [0; 100]).await.unwrap() > 0);
    }

    #[tokio::test]
    async fn a_relay_that_listens_connects_to_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (pipe, mut peer) = duplex(1 << 10);
        let _relay = start(RelayPort::Listen(listener), TIMEOUT, pipe);
        let mut mux = Mux::new(MuxEnd::Even, &Arc::default());
        mux.open(b"127.0.0.1:22".to_vec()).unwrap();
        let mut frames = [0; 256];
        let count = mux.write_control(&mut frames);
        peer.write_all(&frames[..count]).await.unwrap();
        let mut decoder = FrameDecoder::default();
        loop {
            let count = peer.read(&mut frames).await.unwrap();
            let mut bytes = &frames[..count];
            while let Some(piece) = decoder.next(&mut bytes).unwrap() {
                match mux.receive(piece).unwrap() {
                    MuxEvent::Refused(..) => return,
                    event => assert_eq!(event, MuxEvent::Message(Vec::new())),
                }
            }
        }
    }
}
