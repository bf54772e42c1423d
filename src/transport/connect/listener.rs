//! The listener: hands out streams from peers that have a key, in turn by key, and of one key in the order in which they
//! have come. Its background, which accepts connections and makes the streams, is in [`acceptor`](super::acceptor).

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use futures::stream::FusedStream;
use tokio::{
    net::{TcpListener, ToSocketAddrs, lookup_host},
    runtime::Handle,
    sync::Notify,
    task::JoinHandle,
    time::sleep,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    acceptor::{Acceptor, KeyRoutes, KnownKeys, ListenerKeys, ListenerShared},
    admission::PUSHED_OUT,
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig,
    key::KeyId,
    places::{Place, TurnQueue},
    transport::{rdma, stream::Stream},
};

/// The connections that the kernel completes before they are accepted. A crowd that arrives at once waits here for its
/// turn; the kernel reduces the number to `net.core.somaxconn`, 4096 on Linux since 5.4. A connection beyond it is not
/// refused: its dialer repeats its packets after a second.
const KERNEL_BACKLOG: i32 = 4096;

/// The pause before each further report that a listener has ended, so that a loop which ignores errors does not spin.
const ENDED_PAUSE: Duration = Duration::from_secs(1);

/// Accepts streams from peers that have a key.
///
/// Connections are served concurrently in the background. A connection that sends a wrong key or garbage, is silent, or
/// breaks before it is a stream is closed without an error, and [counted](Self::stats). Some streams wait for
/// [`accept`](Self::accept) and are kept alive; the dialers of more wait for their turn.
///
/// ```
/// # use rdpipe::{Key, Stream};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let builder = Stream::builder(&Key::generate()?);
/// let listener = builder.bind("127.0.0.1:0").await?;
/// let dialing = builder.connect(listener.local_addr());
/// let (dialed, accepted) = tokio::try_join!(dialing, listener.accept())?;
/// assert_eq!(dialed.key_id(), accepted.key_id());
/// # Ok(())
/// # }
/// ```
pub struct Listener {
    address: SocketAddr,
    socket: Arc<TcpListener>,
    shared: ListenerShared,
    #[cfg_attr(
        not(feature = "cli"),
        allow(dead_code, reason = "only programs expect further keys")
    )]
    routes: Arc<KeyRoutes>,
    accepting: JoinHandle<()>,
    stop: DropGuard,
}

impl Listener {
    /// Listens on `address` for peers with `key`. Port 0 takes a free port, which [`local_addr`](Self::local_addr)
    /// returns. The unspecified IPv6 address, `"[::]:0"`, also accepts IPv4 peers. If `address` resolves to several
    /// addresses, the first that works is used.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`], or [`Error::Device`] if `config` requires RDMA and this host cannot use it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it had opened.
    pub async fn bind(
        address: impl ToSocketAddrs,
        key: Key,
        config: StreamConfig,
    ) -> Result<Self, Error> {
        Self::bind_to(address, KnownKeys::one(key), config).await
    }

    /// Listens on `address` for peers with any of several keys. `lookup` returns the key with an id, or `None` for an
    /// id that is unknown or revoked; a peer cannot tell that from a wrong key. It is called for every peer, on a
    /// thread of the runtime, and must not block.
    ///
    /// It finds only keys that [`Key::generate`] made: the id of a key that was stretched from a text is never sent,
    /// because a table of texts and ids would show the text. A peer with such a key needs a listener for that key
    /// alone, from [`bind`](Self::bind).
    ///
    /// [`Stream::key_id`](crate::Stream::key_id) tells whose stream it is. A key that `lookup` does not return any more
    /// opens no new stream; those that are open go on.
    ///
    /// One key has at most a quarter of what the listener keeps before streams are accepted: 256 of 1,024 connections
    /// that prove their key, and 16 of 64 streams that are set up or wait for [`accept`](Self::accept). Further peers
    /// with this key wait for [`handshake_timeout`](StreamConfig::handshake_timeout) at most. Keys that wait take turns,
    /// and `accept` returns streams in turn by key. So a peer cannot keep those with other keys out. How many accepted
    /// streams a key may have is up to the program.
    ///
    /// ```
    /// use std::{collections::HashMap, sync::{Arc, RwLock}};
    ///
    /// use rdpipe::{Key, KeyId, Listener, Stream, StreamConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let alice = Key::generate()?;
    /// let keys: HashMap<KeyId, Key> = HashMap::from([(alice.id(), alice.key().clone())]);
    /// let keys = Arc::new(RwLock::new(keys));
    ///
    /// let known = Arc::clone(&keys);
    /// let lookup = move |id: KeyId| known.read().unwrap().get(&id).cloned();
    /// let listener = Listener::bind_with("127.0.0.1:0", lookup, StreamConfig::default()).await?;
    ///
    /// let builder = Stream::builder(&alice);
    /// let dialing = builder.connect(listener.local_addr());
    /// let (_, stream) = tokio::try_join!(dialing, listener.accept())?;
    /// assert_eq!(stream.key_id(), alice.id());
    ///
    /// keys.write().unwrap().remove(&alice.id()); // revoked
    /// assert!(builder.connect(listener.local_addr()).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`bind`](Self::bind).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it had opened.
    pub async fn bind_with(
        address: impl ToSocketAddrs,
        lookup: impl Fn(KeyId) -> Option<Key> + Send + Sync + 'static,
        config: StreamConfig,
    ) -> Result<Self, Error> {
        Self::bind_to(address, KnownKeys::many(lookup), config).await
    }

    /// Listens on `address` for peers with these keys.
    pub(crate) async fn bind_to(
        address: impl ToSocketAddrs,
        keys: KnownKeys,
        config: StreamConfig,
    ) -> Result<Self, Error> {
        let failed = |address: String, source| Error::Listen {
            address,
            source: Arc::new(source),
        };
        let unknown = || "the given address".to_owned();
        let addresses = lookup_host(address).await;
        let mut last = failed(unknown(), io::ErrorKind::AddrNotAvailable.into());
        for address in addresses.map_err(|source| failed(unknown(), source))? {
            match listen(address) {
                Ok(socket) => return Self::start(socket, keys, config),
                Err(source) => last = failed(address.to_string(), source),
            }
        }
        Err(last)
    }

    /// Accepts from a socket that listens already, for peers with `key`: one that was bound to a device or another
    /// network namespace, or that systemd has opened.
    ///
    /// # Errors
    ///
    /// Those of [`bind`](Self::bind).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn from_std(
        socket: std::net::TcpListener,
        key: Key,
        config: StreamConfig,
    ) -> Result<Self, Error> {
        Self::start(socket, KnownKeys::one(key), config)
    }

    fn start(
        socket: std::net::TcpListener,
        keys: KnownKeys,
        config: StreamConfig,
    ) -> Result<Self, Error> {
        rdma::LocalPorts::check(&config)?;
        let failed = |source| Error::Listen {
            address: "its socket".to_owned(),
            source: Arc::new(source),
        };
        let address = socket.local_addr().map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let routes = Arc::<KeyRoutes>::default();
        let decoy = Key::generate().map_err(|error| failed(io::Error::other(error)))?;
        let keys = ListenerKeys::new(keys, decoy.key().clone(), Arc::clone(&routes));
        let runtime = config.control_runtime.clone();
        let runtime = runtime.unwrap_or_else(Handle::current);
        let socket = {
            let _context = runtime.enter();
            Arc::new(TcpListener::from_std(socket).map_err(failed)?)
        };
        let shared = ListenerShared {
            is_everywhere: address.ip().is_unspecified(),
            arrivals: Arc::new(ArrivalQueue::default()),
            counters: Arc::default(),
            live: tokio_util::task::TaskTracker::new(),
            closed: CancellationToken::new(),
        };
        rdma::prepare(&config);
        let acceptor = Acceptor::new(keys, config, shared.clone());
        let accepting = runtime.spawn(acceptor.run(Arc::clone(&socket)));
        Ok(Self {
            address,
            socket,
            stop: shared.closed.clone().drop_guard(),
            shared,
            routes,
            accepting,
        })
    }

    /// Accepts streams of one more key, set up by `config` instead of the settings of the listener, until the result is
    /// dropped. The streams belong to `runtime`, do not go to [`accept`](Self::accept), and are counted in the share of
    /// the key `owner`; none is `key` itself. Returns none if the key is expected already.
    #[cfg(feature = "cli")]
    pub(crate) fn accept_key(
        &self,
        key: Key,
        config: StreamConfig,
        runtime: Handle,
        owner: Option<KeyId>,
    ) -> Option<super::KeyAcceptor> {
        super::KeyAcceptor::new(&self.routes, key, config, runtime, owner)
    }

    /// Returns the address of the listener.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts the next stream from a peer that has a key: in turn by key, and of one key the oldest. Several tasks may accept from one listener, each gets its
    /// own streams.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`] if the listener has ended, because its runtime has. A further call returns that again, after a
    /// second, so that a loop that goes on after errors does not spin. A peer that gets no stream is no error of the
    /// listener: it is [counted](Self::stats), and reported as an event of `tracing`.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub async fn accept(&self) -> Result<Stream, Error> {
        self.accept_with_place().await.map(|(stream, _)| stream)
    }

    /// Accepts the next stream, as [`accept`](Self::accept) does, with its place among the streams that wait: as long as
    /// it is kept, it counts in the share of the peer's key.
    pub(crate) async fn accept_with_place(&self) -> Result<(Stream, Option<Place>), Error> {
        loop {
            match self.shared.arrivals.next().await {
                Some(Arrival { outcome, place, .. }) => {
                    if let Ok(stream) = outcome {
                        return Ok((stream.granted(), place));
                    }
                }
                None => return Err(self.report_end().await),
            }
        }
    }

    /// Accepts the next stream, as [`accept`](Self::accept) does, or returns why a peer with the key gets none: its
    /// settings and those of this listener exclude each other, so it will not succeed when it tries again.
    /// Fails as `accept` does, and with [`Direction`](crate::HandshakeFault::Direction) or
    /// [`Transport`](crate::HandshakeFault::Transport) in an [`Error::Handshake`]; the listener continues after these.
    /// Cancel safe: a stream that was not returned is returned by the next call.
    #[cfg(feature = "cli")]
    pub(crate) async fn accept_or_mismatch(&self) -> Result<Stream, Error> {
        match self.shared.arrivals.next().await {
            Some(arrival) => arrival.outcome.map(Stream::granted),
            None => Err(self.report_end().await),
        }
    }

    async fn report_end(&self) -> Error {
        if !self.shared.arrivals.tell_end() {
            sleep(ENDED_PAUSE).await;
        }
        self.ended()
    }

    /// Polls for the next stream. Only the task that polled last is woken: use [`accept`](Self::accept) in several
    /// tasks.
    ///
    /// # Errors
    ///
    /// Those of [`accept`](Self::accept).
    ///
    /// # Cancel safety
    ///
    /// Safe: `Pending` has accepted nothing.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Stream, Error>> {
        loop {
            match ready!(self.shared.arrivals.poll_next(cx)) {
                Some(arrival) => {
                    if let Ok(stream) = arrival.outcome {
                        return Poll::Ready(Ok(stream.granted()));
                    }
                }
                None => return Poll::Ready(Err(self.ended())),
            }
        }
    }

    fn ended(&self) -> Error {
        let source = Arc::new(io::Error::other("its runtime has ended"));
        Error::Listen {
            address: self.address.to_string(),
            source,
        }
    }

    /// Returns the accepted streams as a [`futures::Stream`], which owns the listener.
    #[must_use]
    pub fn incoming(self) -> Incoming {
        Incoming::new(self)
    }

    /// Returns counts of what became of the connections so far.
    #[must_use]
    pub fn stats(&self) -> ListenerStats {
        self.shared.counters.stats(self.shared.live.len() as u64)
    }

    /// Returns the streams that have not ended, to wait for them after the listener is gone.
    #[must_use]
    pub fn live_streams(&self) -> LiveStreams {
        LiveStreams(self.shared.live.clone())
    }

    /// Stops listening. When it returns, the port is free. Peers that were not accepted get an error; streams that were
    /// accepted go on, and the result can wait for them.
    ///
    /// Dropping a listener does the same without waiting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the listener.
    pub async fn close(self) -> LiveStreams {
        let live = self.live_streams();
        let Self {
            socket,
            stop,
            accepting,
            ..
        } = self;
        drop(stop);
        // An error is the end of its runtime, which has dropped it too.
        let _ = accepting.await;
        drop(socket);
        live
    }
}

impl AsFd for Listener {
    /// Returns the listening socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.address)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(KERNEL_BACKLOG)?;
    Ok(socket.into())
}

/// What became of the connections that a [`Listener`] has accepted so far:
/// [`Listener::stats`](crate::Listener::stats).
///
/// A stream over TCP takes two connections, and counts once, in `streams`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Streams that were made.
    pub streams: u64,
    /// Streams that were made and have not ended.
    pub live: u64,
    /// Peers without a key of this listener.
    pub wrong_keys: u64,
    /// Peers with another version of the protocol.
    pub other_versions: u64,
    /// Connections of other programs, such as port scanners.
    pub foreign: u64,
    /// Peers with the key whose settings exclude those of this listener: the direction, or the transport.
    pub incompatible: u64,
    /// Strangers that were pushed out by newer ones, because there were too many.
    pub pushed_out: u64,
    /// Connections that broke, timed out or broke the protocol before they were a stream.
    pub failed: u64,
    /// Connections that the system could not accept, most often because no descriptor was free.
    pub not_accepted: u64,
}

/// The counts, while they are counted.
#[derive(Default)]
pub(super) struct ListenerCounters {
    streams: AtomicU64,
    wrong_keys: AtomicU64,
    other_versions: AtomicU64,
    foreign: AtomicU64,
    incompatible: AtomicU64,
    pushed_out: AtomicU64,
    failed: AtomicU64,
    not_accepted: AtomicU64,
}

impl ListenerCounters {
    /// Counts a connection that is no stream.
    pub(super) fn count_fault(&self, fault: &HandshakeFault) {
        let counter = match fault {
            HandshakeFault::Key => &self.wrong_keys,
            HandshakeFault::Version { .. } => &self.other_versions,
            HandshakeFault::NotRdpipe(_) => &self.foreign,
            HandshakeFault::Direction(_) | HandshakeFault::Transport(_) => &self.incompatible,
            HandshakeFault::Protocol(text) if *text == PUSHED_OUT => &self.pushed_out,
            _ => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a peer with the key, whose stream was made or not.
    pub(super) fn count_outcome<T>(&self, outcome: &Result<T, Error>) {
        match outcome {
            Ok(_) => _ = self.streams.fetch_add(1, Relaxed),
            Err(Error::Handshake { fault, .. }) => self.count_fault(fault),
            Err(_) => _ = self.failed.fetch_add(1, Relaxed),
        }
    }

    /// Counts a connection that the system could not accept.
    pub(super) fn count_error(&self) {
        self.not_accepted.fetch_add(1, Relaxed);
    }

    /// Returns the counts, with this number of live streams.
    fn stats(&self, live: u64) -> ListenerStats {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        ListenerStats {
            streams: of(&self.streams),
            live,
            wrong_keys: of(&self.wrong_keys),
            other_versions: of(&self.other_versions),
            foreign: of(&self.foreign),
            incompatible: of(&self.incompatible),
            pushed_out: of(&self.pushed_out),
            failed: of(&self.failed),
            not_accepted: of(&self.not_accepted),
        }
    }
}

/// A stream that waits for its program, or the reason why there is none.
pub(crate) struct Arrival {
    pub(super) key_id: KeyId,
    pub(super) outcome: Result<Stream, Error>,
    /// The place among the streams that wait.
    pub(super) place: Option<Place>,
}

/// A queue from which any number of tasks take, in turn by key.
#[derive(Default)]
pub(super) struct ArrivalQueue {
    inner: Mutex<Inner>,
    /// Wakes one of the tasks that wait in [`next`](Self::next).
    arrived: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: TurnQueue<Arrival>,
    /// The last task that polled and got no stream.
    poller: Option<Waker>,
    has_ended: bool,
    is_end_told: bool,
}

impl Inner {
    fn take(&mut self) -> Poll<Option<Arrival>> {
        match self.waiting.pop() {
            None if !self.has_ended => Poll::Pending,
            arrival => Poll::Ready(arrival),
        }
    }
}

impl ArrivalQueue {
    pub(super) fn push(&self, arrival: Arrival) {
        let mut inner = self.lock();
        inner.waiting.push(arrival.key_id, arrival);
        let poller = inner.poller.take();
        drop(inner);
        self.arrived.notify_one();
        poller.into_iter().for_each(Waker::wake);
    }

    pub(super) fn end(&self) {
        let mut inner = self.lock();
        inner.has_ended = true;
        let poller = inner.poller.take();
        drop(inner);
        self.arrived.notify_waiters();
        // For a task that has looked, and does not wait yet.
        self.arrived.notify_one();
        poller.into_iter().for_each(Waker::wake);
    }

    /// Takes the next arrival; `None` after the end.
    /// Cancel safe: an arrival that was not returned is returned by the next call.
    pub(super) async fn next(&self) -> Option<Arrival> {
        loop {
            let arrived = self.arrived.notified();
            match self.lock().take() {
                Poll::Ready(Some(arrival)) => return Some(arrival),
                Poll::Ready(None) => break,
                Poll::Pending => {}
            }
            arrived.await;
        }
        // The next of the tasks that wait learns it too.
        self.arrived.notify_one();
        None
    }

    /// Polls for the next arrival. Wakes only the task that polled last.
    fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Arrival>> {
        let mut inner = self.lock();
        let taken = inner.take();
        if taken.is_pending() {
            inner.poller = Some(cx.waker().clone());
        }
        taken
    }

    /// Returns true once: the program has not been told of the end yet.
    fn tell_end(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_end_told, true)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The streams that a [`Listener`] accepts, as a [`futures::Stream`]: [`Listener::incoming`].
///
/// It yields an error only if the listener itself has ended, once, and ends with it.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    has_ended: bool,
}

impl Incoming {
    fn new(listener: Listener) -> Self {
        Self {
            listener,
            has_ended: false,
        }
    }

    /// Borrows the listener.
    #[must_use]
    pub fn get_ref(&self) -> &Listener {
        &self.listener
    }

    /// Returns the listener.
    #[must_use]
    pub fn into_inner(self) -> Listener {
        self.listener
    }
}

impl futures::Stream for Incoming {
    type Item = Result<Stream, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        self.has_ended = accepted.is_err();
        Poll::Ready(Some(accepted))
    }
}

impl FusedStream for Incoming {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

/// The streams that a [`Listener`] has made and that have not ended. It outlives the listener, so that
/// a server which has stopped listening can wait for those that it still serves.
///
/// ```
/// # use rdpipe::{Key, Stream};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let builder = Stream::builder(&Key::generate()?);
/// let listener = builder.bind("127.0.0.1:0").await?;
/// let live = listener.close().await; // the port is free
/// live.ended().await; // and every stream has ended
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LiveStreams(TaskTracker);

impl LiveStreams {
    /// Returns the number of streams that have not ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits until no stream is live. A stream is live until its last message has been exchanged with the peer, so a
    /// program can exit after this.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call continues to wait.
    pub async fn ended(&self) {
        // It may track more afterwards: closing it only says that an empty one may be reported.
        self.0.close();
        self.0.wait().await;
    }
}

#[cfg(feature = "rdma")]
impl crate::RdmaStream {
    /// Accepts the next stream of `listener`, if its data goes over RDMA.
    ///
    /// Bind the listener with [`TransportPolicy::Rdma`](crate::TransportPolicy::Rdma): then a peer without RDMA is
    /// refused in the handshake. With another policy such a peer first gets its stream, and then an abort with the
    /// reason.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::accept`], and [`Transport`](crate::HandshakeFault::Transport) in an [`Error::Handshake`] if
    /// the stream cannot use RDMA. The listener continues.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub async fn accept(listener: &Listener) -> Result<Self, Error> {
        Ok(listener.accept().await?.try_into()?)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, task::noop_waker_ref};

    use super::*;

    fn arrival(number: &'static str) -> Arrival {
        Arrival {
            key_id: KeyId::from_bytes([0; 16]),
            outcome: Err(Error::Misuse(number)),
            place: None,
        }
    }

    fn name(arrival: Option<Arrival>) -> String {
        let outcome = arrival.expect("an arrival").outcome;
        outcome.expect_err("no stream").to_string()
    }

    #[test]
    fn arrivals_come_in_order_to_tasks_and_polls() {
        let queue = ArrivalQueue::default();
        for number in ["1", "2", "3"] {
            queue.push(arrival(number));
        }
        assert_eq!(name(queue.next().now_or_never().unwrap()), "1");
        let cx = Context::from_waker(noop_waker_ref());
        assert!(matches!(queue.poll_next(&cx), Poll::Ready(Some(_))));
        assert_eq!(name(queue.next().now_or_never().unwrap()), "3");
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_wake_that_was_cancelled_goes_to_another_task() {
        let queue = ArrivalQueue::default();
        let mut first = Box::pin(queue.next());
        let mut second = Box::pin(queue.next());
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        queue.push(arrival("1"));
        drop(first);
        assert_eq!(name(second.await), "1");
    }

    #[tokio::test]
    async fn every_task_learns_of_the_end() {
        let queue = ArrivalQueue::default();
        let waiting = futures::future::join_all((0..4).map(|_| queue.next()));
        let (ends, ()) = tokio::join!(waiting, async { queue.end() });
        assert!(ends.iter().all(Option::is_none));
        assert!(queue.next().await.is_none());
        assert!(queue.tell_end() && !queue.tell_end());
    }
}
