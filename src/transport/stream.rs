//! The stream that users hold, whichever data path it was given.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::task::AtomicWaker;
use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    runtime::Handle,
};
use tokio_util::codec::Framed;

#[cfg(feature = "rdma")]
use super::rdma;
use super::{
    control::{self, Control, Timing},
    negotiate::{Data, Negotiated},
    path::DataPath,
    receiver::Receiver,
    recv::RecvHalf,
    send::SendHalf,
    sender::Sender,
    shared::Shared,
    state::{Failure, State},
    steward,
    tcp::{Tcp, TcpReceive, TcpSend},
    terms::Agreement,
};
use crate::{Direction, Error, Stats, StreamConfig, Transport, pump::FillSlots};

/// One authenticated, checked stream to another process: [`AsyncRead`], [`AsyncBufRead`] and
/// [`AsyncWrite`] over slots of fixed size.
///
/// `poll_write` copies into a slot and posts it at once when nothing else is on its way, so
/// nothing needs to be flushed before an answer is waited for. `poll_flush` completes when
/// everything is with the network. `poll_shutdown` sends FIN and completes when the peer's
/// endpoint holds and has verified every byte, whether or not the peer's program has read them;
/// [`finish`](Self::finish) goes on to wait until the peer's sink has confirmed that it took them.
///
/// Dropping a stream that was not shut down, or not read to its end, aborts it: the peer gets an
/// error, never an end of file.
///
/// ```no_run
/// # async fn example(mut stream: rdpipe::Stream) -> std::io::Result<()> {
/// use tokio::io::AsyncWriteExt;
///
/// tokio::io::copy(&mut tokio::io::stdin(), &mut stream).await?;
/// stream.shutdown().await?; // without this the peer sees a failure, not an end
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Dropping any future of a stream's loses no byte: reads take nothing, writes have either
/// accepted their bytes or not.
pub struct Stream {
    send: WriteHalf,
    recv: ReadHalf,
    info: Arc<Info>,
}

/// The half of a [`Stream`] that reads, from [`Stream::into_split`].
pub struct ReadHalf(Either<RecvHalf<Tcp>, RecvRdma>);

/// The half of a [`Stream`] that writes, from [`Stream::into_split`].
pub struct WriteHalf(Either<SendHalf<Tcp>, SendRdma>);

/// What a stream is made of, by its data path: every call goes through one `match`, none through a
/// table of functions.
enum Either<T, R> {
    Tcp(T),
    #[cfg_attr(not(feature = "rdma"), allow(dead_code))]
    Rdma(R),
}

#[cfg(feature = "rdma")]
type RecvRdma = RecvHalf<rdma::Rdma>;
#[cfg(feature = "rdma")]
type SendRdma = SendHalf<rdma::Rdma>;

// A build without RDMA has no such halves, and the compiler knows.
#[cfg(not(feature = "rdma"))]
type RecvRdma = std::convert::Infallible;
#[cfg(not(feature = "rdma"))]
type SendRdma = std::convert::Infallible;

/// Runs the same expression on whichever half there is.
macro_rules! either {
    ($half:expr, $inner:ident => $call:expr) => {
        match $half {
            Either::Tcp($inner) => $call,
            #[cfg(feature = "rdma")]
            Either::Rdma($inner) => $call,
            #[cfg(not(feature = "rdma"))]
            Either::Rdma(never) => match *never {},
        }
    };
}

/// What was agreed on, and does not change.
struct Info {
    state: Arc<State>,
    peer_addr: SocketAddr,
    transport: Transport,
    reason: String,
    is_fallback: bool,
    direction: Direction,
    chunk_bytes: usize,
    depth: usize,
    smaller: Option<String>,
}

/// Watches a stream from elsewhere while its halves are in use.
#[derive(Clone)]
pub struct Watch(Arc<State>);

impl Stream {
    /// Makes the halves, starts the tasks, and grants the peer its slots.
    pub(crate) fn start(negotiated: Negotiated, config: &StreamConfig) -> Result<Self, Error> {
        let Negotiated {
            control,
            data,
            agreement,
            seeds,
            peer,
        } = negotiated;
        let io_failed = |source: io::Error| Error::Handshake {
            peer: peer.clone(),
            fault: crate::HandshakeFault::Broken(Arc::new(source)),
        };
        let peer_addr = canonical(control.get_ref().peer_addr().map_err(io_failed)?);
        let control_runtime = config.control_runtime.clone();
        let control_runtime = control_runtime.unwrap_or_else(Handle::current);
        let control = move_control(control, &control_runtime).map_err(io_failed)?;
        let state = State::new(peer.clone(), agreement.direction, 2);
        let mut info = Info {
            state: Arc::clone(&state),
            peer_addr,
            transport: Transport::Tcp,
            reason: String::new(),
            is_fallback: false,
            direction: agreement.direction,
            chunk_bytes: agreement.chunk_bytes,
            depth: agreement.depth as usize,
            smaller: None,
        };
        let (send, recv) = match data {
            Data::Tcp {
                socket,
                reason,
                is_fallback,
            } => {
                (info.reason, info.is_fallback) = (reason, is_fallback);
                let paths = tcp_paths(socket, &agreement).map_err(io_failed)?;
                let shared = share::<Tcp>(&state, paths, agreement.depth, seeds, config);
                let (send, recv) = halves(shared);
                (Either::Tcp(send), Either::Tcp(recv))
            }
            #[cfg(feature = "rdma")]
            Data::Rdma(ends) => {
                let mut ends = *ends;
                (info.transport, info.reason) = (Transport::Rdma, ends.name.clone());
                info.smaller = ends.smaller.take();
                (info.chunk_bytes, info.depth) = (ends.chunk_bytes, ends.depth as usize);
                let (paths, depth) = (ends.paths(&state), ends.depth);
                let shared = share::<rdma::Rdma>(&state, paths, depth, seeds, config);
                tokio::spawn(ends.renewer(Arc::clone(&shared), config.timeout).serve());
                let (send, recv) = halves(shared);
                (Either::Rdma(send), Either::Rdma(recv))
            }
            #[cfg(not(feature = "rdma"))]
            Data::Rdma(never) => match *never {},
        };
        let timing = Timing::new(config.timeout, agreement.peer_timeout);
        control_runtime.spawn(control::run(state, control, timing));
        crate::faults::point("after-hello");
        Ok(Self {
            send: WriteHalf(send),
            recv: ReadHalf(recv),
            info: Arc::new(info),
        })
    }

    /// Completes when the peer's sink has taken every byte written here: [`shutdown`], then the
    /// peer's [`confirm`](Self::confirm).
    ///
    /// [`shutdown`]: tokio::io::AsyncWriteExt::shutdown
    ///
    /// # Errors
    ///
    /// Whatever ended the stream before; [`Error::Unconfirmed`] when all bytes had arrived and
    /// only the confirmation is missing.
    ///
    /// # Cancel safety
    ///
    /// Safe: call it again.
    pub async fn finish(&mut self) -> Result<(), Error> {
        poll_fn(|cx| either!(&mut self.send.0, half => half.poll_finish(cx))).await
    }

    /// Tells the peer's [`finish`](Self::finish) that everything read from this stream, to its
    /// end, has been taken: written, flushed, committed, whatever that is here.
    ///
    /// # Errors
    ///
    /// When the end of the stream has not been read, or the stream failed before.
    pub fn confirm(&mut self) -> Result<(), Error> {
        either!(&self.recv.0, half => half.confirm())
    }

    /// Tells the peer that this end wants no more of its bytes, and is content: its writes fail
    /// with [`Error::Stopped`], as a pipe's do whose reader has left.
    pub fn stop(&mut self) {
        either!(&self.recv.0, half => half.stop());
    }

    /// Ends the stream in both directions because something broke. The peer's reads and writes
    /// fail with [`Error::PeerAborted`], which carries `reason`.
    pub fn abort(&mut self, reason: &str) {
        self.info.state.fail(Failure::Aborted {
            reason: reason.to_owned(),
        });
    }

    /// Lets go of the stream and waits until its last message has arrived at the peer, for at
    /// most two seconds. A program that exits right after a stream's end should.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is dropping the stream.
    pub async fn close(self) {
        let Self { send, recv, info } = self;
        drop((send, recv));
        info.state.ended.cancelled().await;
    }

    /// Two halves, for two tasks.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.recv, self.send)
    }

    /// Watches the stream from elsewhere.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.info.state))
    }

    /// The name of the peer: its own for an acceptor, the one dialled for a dialer.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.info.state.peer()
    }

    /// The peer's address, as the control connection sees it.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.info.peer_addr
    }

    /// What carries the data.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.info.transport
    }

    /// More about the [`transport`](Self::transport): with RDMA this end's device, port, GID and
    /// MTU, with TCP why it is not RDMA.
    #[must_use]
    pub fn transport_reason(&self) -> &str {
        &self.info.reason
    }

    /// Whether this host has RDMA and was free to use it, and the data goes over TCP all the same:
    /// worth a line to the user, with [`transport_reason`](Self::transport_reason).
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        self.info.is_fallback
    }

    /// Which ways bytes travel, as this end sees it.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.info.direction
    }

    /// Payload of a chunk in bytes, as agreed.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.info.chunk_bytes
    }

    /// Slots of this end's pool: over TCP that which receives, over RDMA each.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.info.depth
    }

    /// Why this end's pool is smaller than [`StreamConfig::rdma`] wanted, where it is: the memlock
    /// limit, or the most that one end pins. In words that follow
    /// [`chunk_bytes`](Self::chunk_bytes) and [`depth`](Self::depth).
    #[must_use]
    pub fn smaller_pool_reason(&self) -> Option<&str> {
        self.info.smaller.as_deref()
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.info.state.stats()
    }
}

/// Both sides of the data connection, on this runtime: the listener's may have been another one.
fn tcp_paths(
    socket: TcpStream,
    agreement: &Agreement,
) -> io::Result<(Option<TcpSend>, Option<TcpReceive>)> {
    let socket = Arc::new(TcpStream::from_std(socket.into_std()?)?);
    let Agreement {
        direction,
        chunk_bytes,
        depth,
        ..
    } = *agreement;
    let sender = || TcpSend::new(Arc::clone(&socket), chunk_bytes);
    let receiver = || TcpReceive::new(Arc::clone(&socket), chunk_bytes, depth);
    Ok((
        direction.sends().then(sender),
        direction.receives().then(receiver),
    ))
}

/// What the halves of a stream over one kind of data path share. The peer has its slots.
fn share<D: DataPath>(
    state: &Arc<State>,
    (send, receive): (Option<D::Send>, Option<D::Receive>),
    depth: u32,
    seeds: [u64; 2],
    config: &StreamConfig,
) -> Arc<Shared<D>> {
    let receiver = |path| Receiver::new(path, depth, seeds[1], faults(config));
    let shared = Shared {
        state: Arc::clone(state),
        sender: send.map(|path| Sender::new(path, seeds[0])),
        receiver: receive.map(receiver),
        attended: AtomicWaker::new(),
    };
    if let Some(receiver) = &shared.receiver {
        receiver.grant_all(state);
    }
    Arc::new(shared)
}

/// The halves, with their steward.
fn halves<D: DataPath>(shared: Arc<Shared<D>>) -> (SendHalf<D>, RecvHalf<D>) {
    tokio::spawn(steward::serve(Arc::clone(&shared)));
    (SendHalf::new(Arc::clone(&shared)), RecvHalf::new(shared))
}

/// An IPv4 address as one, also where a socket of both families shows it inside an IPv6 one.
fn canonical(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

/// Takes the control connection to the runtime that its task will run on.
fn move_control(control: Control, runtime: &Handle) -> io::Result<Control> {
    let parts = control.into_parts();
    let socket = parts.io.into_std()?;
    let _context = runtime.enter();
    let mut moved = Framed::new(TcpStream::from_std(socket)?, parts.codec).into_parts();
    moved.read_buf = parts.read_buf;
    moved.write_buf = parts.write_buf;
    Ok(Framed::from_parts(moved))
}

#[cfg(feature = "fault-injection")]
fn faults(config: &StreamConfig) -> crate::faults::Faults {
    config.faults
}

#[cfg(not(feature = "fault-injection"))]
fn faults(_config: &StreamConfig) -> crate::faults::Faults {
    crate::faults::Faults::default()
}

impl Watch {
    /// Completes when the stream has failed, or the peer wants no more bytes.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn interrupted(&self) -> Error {
        self.0.interrupted().await;
        self.error()
            .unwrap_or(Error::Misuse("interrupted without a cause"))
    }

    /// What ended the stream before its time, if anything did.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if self.0.sends() {
            self.0.send_error()
        } else {
            self.0.receive_error()
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("peer", &self.peer())
            .field("transport", &self.transport())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

// Every method is forwarded by hand, from the stream to its halves: nothing is dynamic on the data
// path, and the compiler sees through all of it.

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(&mut self.0, half => half.poll_read(cx, buf)).map_err(Into::into)
    }
}

impl AsyncBufRead for ReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        either!(&mut self.get_mut().0, half => half.poll_fill(cx)).map_err(Into::into)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        either!(&mut self.0, half => half.take(count));
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(&mut self.0, half => half.poll_write(cx, bytes)).map_err(Into::into)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.0, half => half.poll_flush(cx)).map_err(Into::into)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.0, half => half.poll_shutdown(cx)).map_err(Into::into)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.recv).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().recv).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut self.recv).consume(count);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.send).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_shutdown(cx)
    }
}

impl FillSlots for Stream {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        either!(&mut self.send.0, half => half.poll_slot(cx))
    }

    fn advance(&mut self, count: usize) {
        either!(&mut self.send.0, half => half.advance(count));
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.send.0, half => half.post(cx))
    }
}
