//! The background of a listener: accepts connections, and makes streams of those that prove that they have a key. A
//! part of the program can take the streams of one key for itself: they do not go to [`Listener::accept`].
//!
//! How many connections it keeps before they are streams, and which of them it may push out, is in
//! [`admission`](super::admission).
//!
//! [`Listener::accept`]: crate::Listener::accept

use std::{
    collections::HashMap,
    fmt::Display,
    iter,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use futures::{StreamExt, poll};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::listener::{Arrival, ArrivalQueue, ListenerCounters};
use crate::{
    Error, HandshakeFault, Key, StreamConfig,
    key::{KeyId, MAX_STRETCHED_KEYS},
    places::{Share, SharedPlaces},
    threads,
    transport::{
        connect::{
            admission::{
                ExpectedStreams, FirstMessages, Limits, MAX_NEW, MAX_WAITING, PUSHED_OUT,
                ProvingPlace, StrangerPlace, Strangers,
            },
            handshake::{self, Authenticated},
            preamble::{ControlOpening, Opening, OpeningKind, PROTOCOL_VERSION, PreambleKind},
        },
        control::{
            connection::closed,
            noise::{self, Responder},
        },
        stream::Stream,
    },
};

/// The pause after the system could not accept a connection, most often because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the background tasks of a listener share.
pub(crate) struct Acceptor {
    keys: ListenerKeys,
    config: StreamConfig,
    /// The runtime in which streams are used and their data paths are made: a queue pair belongs to the runtime in
    /// which it is made.
    streams: Handle,
    /// The places of connections whose first bytes have not been looked at.
    new: Arc<Semaphore>,
    strangers: Arc<Strangers>,
    proving: SharedPlaces,
    /// The first messages of these connections.
    messages: Arc<FirstMessages>,
    /// The places of streams that are being negotiated or wait for the program.
    waiting: SharedPlaces,
    /// The places of streams that go somewhere else than to the program.
    routed: SharedPlaces,
    expected: ExpectedStreams,
    arrivals: Arc<ArrivalQueue>,
    /// True if the listener accepts connections to every address of this host.
    is_everywhere: bool,
    counters: Arc<ListenerCounters>,
    /// The streams that have been made and have not ended.
    live: TaskTracker,
    closed: CancellationToken,
}

/// What a listener and its background tasks share.
#[derive(Clone)]
pub(crate) struct ListenerShared {
    pub(crate) is_everywhere: bool,
    pub(crate) arrivals: Arc<ArrivalQueue>,
    pub(crate) counters: Arc<ListenerCounters>,
    pub(crate) live: TaskTracker,
    pub(crate) closed: CancellationToken,
}

/// Tells the queue that no stream arrives any more, however the task ended.
struct EndOfArrivals(Arc<ArrivalQueue>);

impl Drop for EndOfArrivals {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Acceptor {
    /// An acceptor for peers with one of `keys`, whose streams are used in the current runtime.
    pub(crate) fn new(keys: ListenerKeys, config: StreamConfig, shared: ListenerShared) -> Self {
        let limits = Limits::of_process();
        let share = keys.known.share;
        let ListenerShared {
            is_everywhere,
            arrivals,
            counters,
            live,
            closed,
        } = shared;
        Self {
            keys,
            config,
            streams: Handle::current(),
            new: Arc::new(Semaphore::new(MAX_NEW)),
            strangers: Strangers::new(limits.strangers),
            proving: SharedPlaces::new(share(limits.proving)),
            messages: Arc::default(),
            waiting: SharedPlaces::new(share(MAX_WAITING)),
            routed: SharedPlaces::new(share(MAX_WAITING)),
            expected: ExpectedStreams::default(),
            arrivals,
            is_everywhere,
            counters,
            live,
            closed,
        }
    }

    /// Answers every connection that `socket` accepts, until the listener is closed. Dropping the future, even before
    /// its first poll, ends the arrivals.
    pub(crate) fn run(self, socket: Arc<TcpListener>) -> impl Future<Output = ()> + Send {
        let ends = EndOfArrivals(Arc::clone(&self.arrivals));
        let closed = self.closed.clone();
        async move {
            let _ends = ends;
            closed
                .run_until_cancelled_owned(Arc::new(self).answer(socket))
                .await;
        }
    }

    async fn answer(self: Arc<Self>, socket: Arc<TcpListener>) {
        loop {
            let turn = Arc::clone(&self.new).acquire_owned().await;
            match socket.accept().await {
                Ok((socket, address)) => {
                    let peer = UnauthenticatedPeer {
                        strangers: Arc::clone(&self.strangers),
                        address,
                        turn: turn.ok(),
                        place: None,
                    };
                    self.admit(socket, peer);
                }
                Err(error) => {
                    self.counters.count_error();
                    tracing::warn!(%error, "cannot accept a connection");
                    self.strangers.push_out_half();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: TcpStream, peer: UnauthenticatedPeer) {
        let acceptor = Arc::clone(self);
        let address = peer.address;
        let serving = async move {
            if let Err(fault) = acceptor.serve(socket, peer).await {
                acceptor.counters.count_fault(&fault);
                tracing::debug!(%address, %fault, "a connection that is no stream");
            }
        };
        threads::spawn(self.closed.clone().run_until_cancelled_owned(serving));
    }

    /// Serves one connection until it is a stream, or the data connection of a stream, or fails.
    async fn serve(
        self: &Arc<Self>,
        socket: TcpStream,
        peer: UnauthenticatedPeer,
    ) -> Result<(), HandshakeFault> {
        let limit = self.config.handshake_timeout;
        let authenticated = timeout(limit, self.authenticate(socket, peer)).await;
        match authenticated.map_err(|_| HandshakeFault::Timeout(limit))?? {
            // Boxed like the steps before: a silent connection costs a socket and a few hundred bytes, and not the
            // memory of a whole handshake.
            Some((peer, place)) => {
                let key_id = peer.key_id;
                if let Err(fault) = Box::pin(self.make_stream(peer, place)).await {
                    self.counters.count_fault(&fault);
                    self.report_no_stream(key_id, &fault);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn report_no_stream(&self, key_id: KeyId, error: &dyn Display) {
        let client = self.keys.client(key_id);
        tracing::debug!(%client, %error, "a peer that has the key gets no stream");
    }

    /// Reads the first bytes of a connection, and continues with what they ask for. Returns a peer that has the key;
    /// `None` for a data connection, which then belongs to its stream.
    async fn authenticate(
        &self,
        mut socket: TcpStream,
        mut peer: UnauthenticatedPeer,
    ) -> Result<Option<(Authenticated, ProvingPlace)>, HandshakeFault> {
        socket.set_nodelay(true)?;
        let mut opening = Opening::new();
        if !opening.read_arrived(&socket)? {
            peer.wait(opening.read(&mut socket)).await??;
        }
        match opening.kind() {
            OpeningKind::Control(opening) => {
                let proving = self.prove_key(socket, opening, peer);
                Box::pin(proving).await.map(Some)
            }
            OpeningKind::Data(label) => {
                let candidate = self.expected.candidate(label)?;
                drop(peer);
                Box::pin(candidate.prove(socket)).await?;
                Ok(None)
            }
            OpeningKind::OtherVersion(theirs) => {
                let refusal = handshake::refuse(socket, PreambleKind::WrongVersion);
                peer.wait(Box::pin(refusal)).await?;
                Err(HandshakeFault::Version {
                    ours: PROTOCOL_VERSION,
                    theirs,
                })
            }
            OpeningKind::Unknown => Err(HandshakeFault::Protocol("an unknown purpose")),
            OpeningKind::Foreign => Err(HandshakeFault::NotRdpipe(
                "its first bytes are another protocol's",
            )),
        }
    }

    /// Verifies the first message of a control connection, and lets the dialer show that it can go on. The answer to an
    /// unknown key is that to a message which does not verify, and takes as long.
    ///
    /// If too many connections are proving the key, this one stays a stranger until one of them has left: one that has
    /// been silent for some time leaves then.
    async fn prove_key(
        &self,
        socket: TcpStream,
        opening: ControlOpening,
        mut peer: UnauthenticatedPeer,
    ) -> Result<(Authenticated, ProvingPlace), HandshakeFault> {
        let Some((key_id, responder)) = self.keys.respond(&opening) else {
            let refusal = handshake::refuse(socket, PreambleKind::WrongKey);
            peer.wait(Box::pin(refusal)).await?;
            return Err(HandshakeFault::Key);
        };
        let places = self.proving.of(self.keys.owner(key_id));
        let entering = self.messages.enter(opening.first, places);
        let mut entering = pin!(entering.ok_or(HandshakeFault::Protocol("a recorded message"))?);
        let place = match poll!(entering.as_mut()) {
            Poll::Ready(place) => place,
            Poll::Pending => peer.wait(entering).await?,
        };
        let place = place.ok_or_else(closed)?;
        drop(peer);
        let answered = tokio::select! {
            biased;
            answered = handshake::answer(socket, responder, key_id) => answered?,
            () = place.overdue() => return Err(HandshakeFault::Protocol(OVERDUE)),
        };
        Ok((answered, place))
    }

    /// Makes a stream with a peer that has the key, and keeps it for the program.
    async fn make_stream(
        self: &Arc<Self>,
        mut peer: Authenticated,
        proving: ProvingPlace,
    ) -> Result<(), HandshakeFault> {
        let limit = self.config.handshake_timeout;
        let route = self.keys.route(peer.key_id);
        let places = match &route {
            Some(route) => self.routed.of(route.owner),
            None => self.waiting.of(peer.key_id),
        };
        let waiting = timeout(limit, places.wait());
        let place = tokio::select! {
            biased;
            place = waiting => place.map_err(|_| HandshakeFault::Timeout(limit))?,
            // The dialer has nothing to send before its answer: it has given up.
            _ = peer.control.next() => return Err(closed().into()),
        };
        drop(proving);
        let acceptor = Arc::clone(self);
        let key_id = peer.key_id;
        let routed = route.clone();
        let negotiating = async move {
            let config = routed
                .as_ref()
                .map_or(&acceptor.config, |route| &route.config);
            let expect = |token| acceptor.expected.expect(token);
            let is_everywhere = acceptor.is_everywhere;
            let negotiated = handshake::accept(peer, config, is_everywhere, expect).await?;
            Stream::start(negotiated, config, Some(&acceptor.live))
        };
        let negotiating = self.closed.clone().run_until_cancelled_owned(negotiating);
        let runtime = route.as_ref().map_or(&self.streams, |route| &route.runtime);
        let Ok(Some(outcome)) = runtime.spawn(negotiating).await else {
            // The listener or its runtime has been dropped.
            return Ok(());
        };
        self.counters.count_outcome(&outcome);
        if let Err(error) = &outcome {
            self.report_no_stream(key_id, error);
        }
        if !outcome.as_ref().err().is_none_or(concerns_the_program) {
            return Ok(());
        }
        let arrival = Arrival {
            key_id,
            outcome,
            place,
        };
        match route {
            Some(route) => route.push(arrival),
            None => self.arrivals.push(arrival),
        }
        Ok(())
    }
}

/// Returns true for an error that every further attempt of the peer would meet too, until a program is restarted with
/// other settings. Any other failure ends one connection, and its dialer tries again or reports it.
fn concerns_the_program(error: &Error) -> bool {
    let Error::Handshake { fault, .. } = error else {
        return false;
    };
    matches!(
        fault,
        HandshakeFault::Direction(_) | HandshakeFault::Transport(_)
    )
}

/// The end of a connection that did not prove the key while others of its key waited.
const OVERDUE: &str = "no proof of the key while others of its key wait";

/// A connection that has not shown that it has the key.
struct UnauthenticatedPeer {
    strangers: Arc<Strangers>,
    address: SocketAddr,
    /// Its place among the new connections, until it has to wait.
    turn: Option<OwnedSemaphorePermit>,
    /// Its place among the strangers, once it has had to wait.
    place: Option<StrangerPlace>,
}

impl UnauthenticatedPeer {
    /// Runs what takes time, as a stranger, which may be pushed out.
    async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, HandshakeFault> {
        let ip = self.address.ip();
        let place = self.place.get_or_insert_with(|| self.strangers.enter(ip));
        self.turn = None;
        let pushed_out = HandshakeFault::Protocol(PUSHED_OUT);
        place.unless_pushed_out(work).await.ok_or(pushed_out)
    }
}

/// The keys that a listener is opened for.
pub(crate) struct KnownKeys {
    lookup: Box<dyn Fn(KeyId) -> Option<Key> + Send + Sync>,
    /// Returns the stretched keys, whose dialers send no id.
    stretched: Box<dyn Fn() -> Arc<Vec<Key>> + Send + Sync>,
    name: Box<dyn Fn(KeyId) -> Option<Arc<str>> + Send + Sync>,
    /// Returns what one key has of a number of places.
    share: fn(usize) -> Share,
}

impl KnownKeys {
    /// Returns one key, which has all places.
    pub(crate) fn one(key: Key) -> Self {
        Self {
            lookup: Box::new(move |_| Some(key.clone())),
            stretched: Box::new(Arc::default),
            name: Box::new(|_| None),
            share: Share::whole,
        }
    }

    /// Returns the keys that `lookup` returns, each of which has a quarter of the places. It finds no stretched key,
    /// because the dialers of one send no id.
    pub(crate) fn many(lookup: impl Fn(KeyId) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self {
            lookup: Box::new(lookup),
            stretched: Box::new(Arc::default),
            name: Box::new(|_| None),
            share: Share::quarter,
        }
    }

    /// Adds the stretched keys that `stretched` returns, of which the first [`MAX_STRETCHED_KEYS`] count.
    #[cfg(feature = "cli")]
    pub(crate) fn and_stretched(
        self,
        stretched: impl Fn() -> Arc<Vec<Key>> + Send + Sync + 'static,
    ) -> Self {
        let stretched = Box::new(stretched);
        Self { stretched, ..self }
    }

    /// Names the clients that have the keys, for events.
    #[cfg(feature = "cli")]
    pub(crate) fn named(
        self,
        name: impl Fn(KeyId) -> Option<Arc<str>> + Send + Sync + 'static,
    ) -> Self {
        let name = Box::new(name);
        Self { name, ..self }
    }
}

/// Finds the key of a peer by its id, or among the stretched keys.
pub(crate) struct ListenerKeys {
    known: KnownKeys,
    /// Verifies the messages of peers whose key is unknown, which takes as long as with a known key, and always fails,
    /// since this key is random and kept here only.
    decoy: Key,
    /// The keys whose streams go somewhere else than to the program.
    routes: Arc<KeyRoutes>,
}

impl ListenerKeys {
    /// The keys that are known, and those of `routes`.
    pub(crate) fn new(known: KnownKeys, decoy: Key, routes: Arc<KeyRoutes>) -> Self {
        Self {
            known,
            decoy,
            routes,
        }
    }

    /// Verifies the first message of a dialer, with the key of the id that it sent, then with each stretched key.
    /// Returns the id of the key that the message was made with.
    ///
    /// A message that does not verify costs the same work, whether its id is known or not.
    pub(crate) fn respond(&self, opening: &ControlOpening) -> Option<(KeyId, Responder)> {
        let named = self.key_or_decoy(opening.key_id());
        let stretched = (self.known.stretched)();
        let stretched = stretched.iter().take(MAX_STRETCHED_KEYS);
        iter::once(&named).chain(stretched).find_map(|key| {
            let responder = noise::respond(key, &opening.prologue, &opening.first).ok()?;
            Some((key.id(), responder))
        })
    }

    /// Returns the key with this id, or a key that no peer has.
    fn key_or_decoy(&self, id: KeyId) -> Key {
        let routed = self.route(id).map(|route| route.key.clone());
        routed
            .or_else(|| (self.known.lookup)(id))
            .unwrap_or_else(|| self.decoy.clone())
    }

    /// Returns the key in whose share the connections of this key are counted: that of the client which has brought it.
    pub(crate) fn owner(&self, id: KeyId) -> KeyId {
        self.route(id).map_or(id, |route| route.owner)
    }

    /// Returns the name of the client in whose share the connections of this key are counted, or the id of its key.
    pub(crate) fn client(&self, id: KeyId) -> Arc<str> {
        let owner = self.owner(id);
        (self.known.name)(owner).unwrap_or_else(|| owner.to_string().into())
    }

    /// Returns where the streams of this key go, if they do not go to the program.
    pub(crate) fn route(&self, id: KeyId) -> Option<Arc<KeyRoute>> {
        self.routes.find(id)
    }
}

/// The keys that parts of the program expect, by id.
#[derive(Default)]
pub(crate) struct KeyRoutes(Mutex<HashMap<KeyId, Arc<KeyRoute>>>);

/// Where the streams of one key go, and how they are set up.
pub(crate) struct KeyRoute {
    pub(crate) key: Key,
    pub(crate) config: StreamConfig,
    /// The runtime that the streams belong to.
    pub(crate) runtime: Handle,
    /// The key in whose share the streams are counted.
    pub(crate) owner: KeyId,
    /// As long as the places of the owner.
    arrivals: mpsc::UnboundedSender<Arrival>,
}

impl KeyRoute {
    /// Passes on a stream, or the reason why a peer with the key gets none.
    pub(crate) fn push(&self, arrival: Arrival) {
        // If the acceptor has been dropped, the stream is dropped here, which aborts it.
        let _ = self.arrivals.send(arrival);
    }
}

impl KeyRoutes {
    pub(crate) fn find(&self, id: KeyId) -> Option<Arc<KeyRoute>> {
        self.lock().get(&id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, Arc<KeyRoute>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts the streams of one key on a listener that others use too. Dropping it makes the key unknown again.
#[cfg(feature = "cli")]
pub(crate) struct KeyAcceptor {
    id: KeyId,
    routes: Arc<KeyRoutes>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
}

#[cfg(feature = "cli")]
impl KeyAcceptor {
    /// Expects streams of `key`, which `config` sets up, which belong to `runtime`, and which are counted in the share
    /// of the key `owner`; none is `key` itself. Returns none if the key is expected already.
    pub(crate) fn new(
        routes: &Arc<KeyRoutes>,
        key: Key,
        config: StreamConfig,
        runtime: Handle,
        owner: Option<KeyId>,
    ) -> Option<Self> {
        let id = key.id();
        let (sender, arrivals) = mpsc::unbounded_channel();
        let route = KeyRoute {
            key,
            config,
            runtime,
            owner: owner.unwrap_or(id),
            arrivals: sender,
        };
        let mut known = routes.lock();
        if known.contains_key(&id) {
            return None;
        }
        known.insert(id, Arc::new(route));
        drop(known);
        Some(Self {
            id,
            routes: Arc::clone(routes),
            arrivals,
        })
    }

    /// Accepts the next stream. Fails as
    /// [`Listener::accept_or_mismatch`](super::listener::Listener::accept_or_mismatch) does.
    /// Cancel safe: a stream that was not returned is returned by the next call.
    pub(crate) async fn accept(&mut self) -> Result<Stream, Error> {
        match self.arrivals.recv().await {
            Some(arrival) => arrival.outcome.map(Stream::granted),
            // The route lives at least as long as this value.
            None => std::future::pending().await,
        }
    }
}

#[cfg(feature = "cli")]
impl Drop for KeyAcceptor {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.id);
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::{
        Listener, connect,
        transport::{
            connect::preamble::{PREAMBLE_BYTES, PROLOGUE_BYTES, Preamble},
            control::noise::HANDSHAKE_BYTES,
        },
    };

    const FIRST_BYTES: usize = PROLOGUE_BYTES + HANDSHAKE_BYTES;

    fn made() -> Key {
        Key::generate().unwrap().key().clone()
    }

    fn stretched(words: impl IntoIterator<Item = usize>) -> Vec<Key> {
        let words = words.into_iter();
        words
            .map(|number| Key::parse(format!("the words of client {number}")).unwrap())
            .collect()
    }

    /// Opens a listener for generated and stretched keys.
    async fn listener(made: &[Key], stretched: Vec<Key>) -> Listener {
        let all = made.iter().chain(&stretched);
        let all: HashMap<_, _> = all.map(|key| (key.id(), key.clone())).collect();
        let stretched = Arc::new(stretched);
        let known = KnownKeys::many(move |id| all.get(&id).cloned())
            .and_stretched(move || Arc::clone(&stretched));
        let listener = Listener::bind_to("127.0.0.1:0", known, StreamConfig::default());
        listener.await.unwrap()
    }

    /// Returns the first bytes that a dialer with a key sends.
    async fn first_bytes(key: &Key) -> [u8; FIRST_BYTES] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = StreamConfig::default();
        let reading = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut bytes = [0; FIRST_BYTES];
            socket.read_exact(&mut bytes).await.unwrap();
            bytes
        };
        tokio::select! {
            bytes = reading => bytes,
            ended = connect(address, key, &config) => panic!("no answer was sent: {ended:?}"),
        }
    }

    #[tokio::test]
    async fn connections_of_one_stretched_key_have_nothing_in_common() {
        let key = Key::parse("hunter2").unwrap();
        let [first, second] = [first_bytes(&key).await, first_bytes(&key).await];
        let (preamble, first) = first.split_at(PREAMBLE_BYTES);
        assert_eq!(preamble, Preamble::encode(PreambleKind::Control));
        let second = &second[PREAMBLE_BYTES..];
        let id = key.id().to_bytes();
        for part in first.windows(6) {
            let is_in = |bytes: &[u8]| bytes.windows(6).any(|other| other == part);
            assert!(!is_in(second) && !is_in(&id), "{part:x?}");
        }
    }

    #[tokio::test]
    async fn a_generated_key_shows_its_id() {
        let key = made();
        for bytes in [first_bytes(&key).await, first_bytes(&key).await] {
            assert_eq!(bytes[PREAMBLE_BYTES..PROLOGUE_BYTES], key.id().to_bytes());
        }
    }

    #[tokio::test]
    async fn a_listener_finds_each_of_its_keys() {
        let (made, stretched) = ([made(), made()], stretched(0..3));
        let listener = listener(&made, stretched.clone()).await;
        for key in made.iter().chain(&stretched) {
            let config = StreamConfig::default();
            let dialing = connect(listener.local_addr(), key, &config);
            let (dialed, accepted) = tokio::try_join!(dialing, listener.accept()).unwrap();
            assert_eq!((dialed.key_id(), accepted.key_id()), (key.id(), key.id()));
        }
    }

    /// The last of the stretched keys is one more than a listener tries.
    #[tokio::test]
    async fn a_word_that_is_not_tried_gets_the_answer_to_a_wrong_key() {
        let known = stretched(0..=MAX_STRETCHED_KEYS);
        let last = known[MAX_STRETCHED_KEYS].clone();
        let listener = listener(&[made()], known).await;
        for key in [last, Key::parse("hunter2").unwrap(), made()] {
            let config = StreamConfig::default();
            let error = connect(listener.local_addr(), &key, &config).await;
            let error = error.expect_err("a key that is not tried");
            let is_wrong_key = matches!(
                error,
                Error::Handshake {
                    fault: HandshakeFault::Key,
                    ..
                }
            );
            assert!(is_wrong_key, "{error:?}");
        }
    }

    /// A stranger that has seen the id of a key does not learn from the time whether the listener still knows it.
    #[tokio::test]
    async fn a_message_that_does_not_verify_costs_the_same_work_for_every_id() {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

        let (known, tried) = (made(), Arc::new(AtomicUsize::new(0)));
        let (found, counted) = (known.clone(), Arc::clone(&tried));
        let keys = KnownKeys::many(move |id| (id == found.id()).then(|| found.clone()))
            .and_stretched(move || {
                counted.fetch_add(1, Relaxed);
                Arc::default()
            });
        let keys = ListenerKeys::new(keys, made(), Arc::default());
        for (count, id) in (1..).zip([known.id(), made().id()]) {
            let preamble = Preamble::encode(PreambleKind::Control);
            let prologue = [&preamble[..], &id.to_bytes()].concat();
            let opening = ControlOpening {
                prologue: prologue.try_into().unwrap(),
                first: [7; HANDSHAKE_BYTES],
            };
            assert!(keys.respond(&opening).is_none());
            assert_eq!(tried.load(Relaxed), count);
        }
    }
}
