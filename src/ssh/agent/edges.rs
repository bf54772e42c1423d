//! The edges of an order: connects any number of them, each on a thread of its own, at a listener of its own or at the
//! listener of a server; and moves the bytes of a stage over a connected edge.

use std::{
    collections::BTreeMap,
    future::pending,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, ReadBuf},
    runtime::Handle,
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use super::{
    job::{ConnectedEdges, FirstFault, JobContext, OrderedEdge, OrderedEdges, PlacedEdge},
    outbox::Outbox,
};
use crate::{
    Direction, Error, Key, KeyAcceptor, KeyId, Listener, Stream, StreamConfig, TransportPolicy,
    Watch,
    carry::{self, CarryError, CarryThread, Observer, Railed, WaitClock, Watched},
    fd::{Sink, Source},
    options::{FlowOptions, StreamOptions},
    reach,
    ssh::{
        edge::{EdgePlan, describe_link},
        protocol::{EdgeId, EdgeOrder, FaultKind, FromAgent, Order},
    },
    transport::FillSlots,
};

/// The most requests that wait for an edge. The controller has an answer to each before its next one.
const MAX_REQUESTS: usize = 4;

/// The edges of an order before they are connected.
pub(super) struct PendingEdges {
    edges: BTreeMap<EdgeId, PendingEdge>,
    acceptance: EdgeAcceptance,
    routes: EdgeRoutes,
}

struct PendingEdge {
    thread: CarryThread,
    plan: EdgePlan,
    direction: Direction,
    requests: mpsc::Receiver<EdgeRequest>,
    meter: Arc<Meter>,
}

/// Passes each request of the controller to the edge that it is about.
#[derive(Clone, Default)]
pub(super) struct EdgeRoutes(BTreeMap<EdgeId, mpsc::Sender<EdgeRequest>>);

impl EdgeRoutes {
    /// Passes a request to its edge. A request about an edge that is connected or unknown is ignored, and one beyond
    /// [`MAX_REQUESTS`].
    pub(super) fn send(&self, id: EdgeId, request: EdgeRequest) {
        if let Some(route) = self.0.get(&id) {
            let _ = route.try_send(request);
        }
    }
}

impl PendingEdges {
    /// Starts a thread, which holds `threads`, and parses the key for each edge of `order`, which `acceptance` accepts.
    /// Removes the edges, with their keys, from the order.
    /// Fails if the order names an edge twice, a key is invalid or a thread cannot be started.
    pub(super) fn prepare(
        order: &mut Order,
        acceptance: &EdgeAcceptance,
        control_runtime: &Handle,
        threads: &TaskTrackerToken,
    ) -> Result<Self, String> {
        let mut edges = BTreeMap::new();
        let mut routes = EdgeRoutes::default();
        for edge in std::mem::take(&mut order.edges) {
            let (sender, requests) = mpsc::channel(MAX_REQUESTS);
            if edge.listens {
                let _ = sender.try_send(EdgeRequest::Listen);
            }
            let id = edge.id;
            if routes.0.insert(id, sender).is_some() {
                return Err(format!("the order names its edge {id} twice"));
            }
            let config = acceptance.config(&order.stream, edge.direction, control_runtime);
            let threads = threads.clone();
            let edge = PendingEdge::prepare(edge, config, order.ports, requests, threads)?;
            edges.insert(id, edge);
        }
        let acceptance = acceptance.clone();
        Ok(Self {
            edges,
            acceptance,
            routes,
        })
    }

    /// Returns the routes for the controller's requests to the edges.
    pub(super) fn routes(&self) -> EdgeRoutes {
        self.routes.clone()
    }

    /// Returns what an application knows of the edges.
    pub(super) fn ordered(&self) -> OrderedEdges {
        let ordered = |(id, edge): (&EdgeId, &PendingEdge)| {
            let ordered = OrderedEdge {
                direction: edge.direction,
                meter: Arc::clone(&edge.meter),
                plan: edge.plan.clone(),
            };
            (*id, ordered)
        };
        OrderedEdges(self.edges.iter().map(ordered).collect())
    }

    /// Waits until all edges are connected or left out. If the work fails before that, closes those that are connected
    /// with the reason, and returns none.
    /// Dropping the future drops the edges that are connected already.
    pub(super) async fn establish(self, context: &JobContext) -> Option<ConnectedEdges> {
        let acceptance = &self.acceptance;
        let establish = |(id, edge): (EdgeId, PendingEdge)| async move {
            tokio::select! {
                placed = edge.establish(id, acceptance, context) => Some((id, placed?)),
                () = context.first_fault.failed() => None,
            }
        };
        let all = self.edges.into_iter().map(establish);
        let connected = futures::future::join_all(all).await.into_iter().flatten();
        let edges = ConnectedEdges(connected.collect());
        if !context.first_fault.has_failed() {
            return Some(edges);
        }
        edges.close().await;
        None
    }
}

impl PendingEdge {
    fn prepare(
        mut edge: EdgeOrder,
        config: StreamConfig,
        ports: Option<(u16, u16)>,
        requests: mpsc::Receiver<EdgeRequest>,
        threads: TaskTrackerToken,
    ) -> Result<Self, String> {
        let key = Key::parse_generated(&edge.key).map_err(|error| error.to_string())?;
        let name = match edge.direction {
            Direction::Receive => "input",
            Direction::Send => "output",
            Direction::Both => "edge",
        };
        let thread = CarryThread::start_holding(name, threads);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            thread,
            plan: EdgePlan {
                key,
                peer: std::mem::take(&mut edge.peer),
                config,
                ports,
            },
            direction: edge.direction,
            requests,
            meter: Arc::default(),
        })
    }

    /// Connects the edge, and reports that to the controller. Returns none if the controller leaves the edge out, and if
    /// the edge fails, which fails the work.
    async fn establish(
        self,
        id: EdgeId,
        acceptance: &EdgeAcceptance,
        context: &JobContext,
    ) -> Option<PlacedEdge> {
        let peer = self.plan.peer.clone();
        let outbox = context.outbox.clone();
        let establishing = establish(id, self.plan, self.requests, outbox, acceptance.clone());
        // The thread goes on with what it runs, so the end of the work ends it there.
        let failed = Arc::clone(&context.first_fault);
        let establishing = async move {
            tokio::select! {
                connected = establishing => Some(connected),
                () = failed.failed() => None,
            }
        };
        match self.thread.run(establishing).await? {
            Ok(None) => None,
            Ok(Some(stream)) => {
                let link = describe_link(&stream);
                context.outbox.send(FromAgent::Connected { edge: id, link });
                let edge = ConnectedEdge {
                    stream,
                    meter: self.meter,
                    peer,
                    first_fault: Arc::clone(&context.first_fault),
                    stage: context.name.clone(),
                };
                Some((self.thread, edge))
            }
            Err(text) => {
                context.fail(FaultKind::Edge, &text);
                None
            }
        }
    }
}

/// Waits for the controller's `Go`. If an edge breaks or the work fails before that, closes all edges with the reason
/// and returns none.
pub(super) async fn wait_for(
    go: CancellationToken,
    context: &JobContext,
    edges: ConnectedEdges,
) -> Option<ConnectedEdges> {
    let broken = edges.0.values().map(|(_, edge)| until_broken(edge));
    let failed = async {
        futures::future::join_all(broken).await;
        context.first_fault.failed().await;
    };
    let has_started = tokio::select! {
        biased;
        () = go.cancelled() => true,
        () = failed => false,
    };
    if has_started {
        return Some(edges);
    }
    edges.close().await;
    None
}

/// Waits until the edge breaks, and fails the work with it. Returns as well when the work fails elsewhere or the peer
/// stops reading.
async fn until_broken(edge: &ConnectedEdge) {
    if let Err(EarlyEnd::Stream(error)) = edge.until(std::future::pending::<()>()).await {
        edge.broken(error);
    }
}

/// A request of the controller about an edge that is not connected yet.
#[derive(Debug)]
pub(super) enum EdgeRequest {
    /// Listen, and report the port.
    Listen,
    /// Connect to the other end, which listens.
    Dial {
        /// Where the other end may be reached.
        addresses: Vec<String>,
        /// The port of the other end.
        port: u16,
        /// Whether the connections go through ssh.
        is_relayed: bool,
    },
    /// Connect nothing: the work goes on without the edge.
    LeaveOut,
}

/// Carries out the controller's requests until the edge is connected, or left out. The stream belongs to the current
/// runtime.
///
/// The caller reports the connection, when it has the stream: what the controller sends after that report finds it.
/// If no address can be reached, this reports that to the controller and waits for its next request.
/// Dropping the future closes what it has opened.
pub(super) async fn establish(
    id: EdgeId,
    plan: EdgePlan,
    mut requests: mpsc::Receiver<EdgeRequest>,
    outbox: Outbox,
    acceptance: EdgeAcceptance,
) -> Result<Option<Stream>, String> {
    let mut acceptor = None;
    loop {
        tokio::select! {
            Some(request) = requests.recv() => match request {
                EdgeRequest::Listen => {
                    let opened = acceptance.open(&plan).await?;
                    let port = opened.port();
                    outbox.send(FromAgent::Listening { edge: id, port });
                    acceptor = Some(opened);
                }
                EdgeRequest::Dial {
                    addresses,
                    port,
                    is_relayed,
                } => {
                    acceptance.check_dial()?;
                    match plan.dial(&addresses, port, is_relayed).await? {
                        Ok(stream) => return Ok(Some(stream)),
                        Err(tried) => outbox.send(FromAgent::Unreachable { edge: id, tried }),
                    }
                }
                EdgeRequest::LeaveOut => return Ok(None),
            },
            accepted = accept(acceptor.as_mut()) => match accepted {
                Ok(stream) => return Ok(Some(stream)),
                Err(error) if reach::is_final(&error) => return Err(plan.unconnected(error)),
                Err(error) => tracing::debug!(%error, "a connection ended before it was a stream"),
            },
        }
    }
}

async fn accept(acceptor: Option<&mut EdgeAcceptor>) -> Result<Stream, Error> {
    match acceptor {
        Some(acceptor) => acceptor.accept().await,
        None => pending().await,
    }
}

/// How an agent accepts its edges.
#[derive(Clone)]
pub(crate) enum EdgeAcceptance {
    /// Each edge has a listener of its own, on a port that the order allows.
    OwnListeners,
    /// All edges of all orders come to one listener. The agent dials no address that a controller gives to it.
    SharedListener(Arc<SharedListener>),
}

/// The listener of a server, for the edges of all its clients.
pub(crate) struct SharedListener {
    /// The listener that all clients know.
    pub(crate) listener: Arc<Listener>,
    /// The key of the client, in whose share its edges are counted.
    pub(crate) owner: KeyId,
    /// The settings of every edge in one direction. An order may choose a shorter timeout, and exclude a transport.
    pub(crate) one_way: StreamConfig,
    /// The settings of every edge in both directions.
    pub(crate) two_way: StreamConfig,
    /// Receives each edge when it is connected.
    pub(crate) connected: Box<dyn Fn(&Stream) + Send + Sync>,
}

impl EdgeAcceptance {
    /// Returns the settings for an edge of an order.
    pub(super) fn config(
        &self,
        order: &StreamOptions,
        direction: Direction,
        control_runtime: &Handle,
    ) -> StreamConfig {
        let ordered = StreamConfig {
            control_runtime: Some(control_runtime.clone()),
            ..order.config(direction)
        };
        match self {
            Self::OwnListeners => ordered,
            Self::SharedListener(shared) => {
                let own = match ordered.direction {
                    Direction::Both => &shared.two_way,
                    Direction::Send | Direction::Receive => &shared.one_way,
                };
                StreamConfig {
                    direction: ordered.direction,
                    control_runtime: ordered.control_runtime,
                    timeout: ordered.timeout.min(own.timeout),
                    transport: common(own.transport, ordered.transport),
                    ..own.clone()
                }
            }
        }
    }

    /// Starts to listen for an edge.
    pub(super) async fn open(&self, plan: &EdgePlan) -> Result<EdgeAcceptor, String> {
        match self {
            Self::OwnListeners => Ok(EdgeAcceptor::Own(plan.listen().await?)),
            Self::SharedListener(shared) => {
                let (key, config) = (plan.key.clone(), plan.config.clone());
                let (runtime, owner) = (Handle::current(), Some(shared.owner));
                let key_acceptor = shared.listener.accept_key(key, config, runtime, owner);
                let key_acceptor = key_acceptor.ok_or("the key of an edge is in use already")?;
                Ok(EdgeAcceptor::Shared(key_acceptor, Arc::clone(shared)))
            }
        }
    }

    /// Checks that the agent may connect to an address that the controller gives to it.
    pub(super) fn check_dial(&self) -> Result<(), String> {
        match self {
            Self::OwnListeners => Ok(()),
            Self::SharedListener(_) => Err("a server does not connect to its clients".to_owned()),
        }
    }
}

/// Returns the transports that both policies allow. If they exclude each other, the handshake of the edge says so.
fn common(server: TransportPolicy, ordered: TransportPolicy) -> TransportPolicy {
    match server {
        TransportPolicy::Auto => ordered,
        chosen => chosen,
    }
}

/// Where one edge is accepted.
pub(super) enum EdgeAcceptor {
    Own(Listener),
    Shared(KeyAcceptor, Arc<SharedListener>),
}

impl EdgeAcceptor {
    /// Returns the port for the other end.
    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Own(listener) => listener.local_addr().port(),
            Self::Shared(_, shared) => shared.listener.local_addr().port(),
        }
    }

    /// Accepts the edge.
    /// Cancel safe: a stream that was not returned is returned by the next call.
    pub(super) async fn accept(&mut self) -> Result<Stream, Error> {
        match self {
            Self::Own(listener) => listener.accept_or_mismatch().await,
            Self::Shared(key_acceptor, shared) => {
                let stream = key_acceptor.accept().await?;
                (shared.connected)(&stream);
                Ok(stream)
            }
        }
    }
}

/// The stream of an edge, with its counts and the names for messages.
pub(crate) struct ConnectedEdge {
    pub(crate) stream: Stream,
    pub(super) meter: Arc<Meter>,
    /// The name of the other end in messages: "stage 1 (fs1)".
    pub(crate) peer: String,
    pub(super) first_fault: Arc<FirstFault>,
    /// The name of this stage in messages to peers: "stage 2 (fs2)".
    pub(super) stage: String,
}

/// The reason why an edge ends before all of its bytes are carried.
#[derive(Debug)]
pub(super) enum EarlyEnd {
    /// The next stage has stopped reading.
    Stopped,
    Stream(Error),
    /// The local source or sink failed after this many bytes.
    Local(io::Error, u64),
    /// There is no buffer of `--buffer`, as a whole sentence says.
    Buffer(io::Error),
    /// Another part of the order failed. The failure is in the [`FirstFault`] already.
    Elsewhere,
}

impl From<Error> for EarlyEnd {
    fn from(error: Error) -> Self {
        match error {
            Error::Stopped { .. } => Self::Stopped,
            error => Self::Stream(error),
        }
    }
}

impl From<CarryError> for EarlyEnd {
    fn from(error: CarryError) -> Self {
        match error {
            CarryError::Source { offset, source } | CarryError::Sink { offset, source } => {
                Self::Local(source, offset)
            }
            CarryError::Buffer(error) => Self::Buffer(error),
            CarryError::Stream(error) => error.into(),
        }
    }
}

impl ConnectedEdge {
    /// Writes the whole input to `sink`, up to a verified FIN.
    pub(super) async fn drain(
        &mut self,
        sink: &mut Sink,
        flow: FlowOptions,
    ) -> Result<(), EarlyEnd> {
        let mut input = Metered::new(&mut self.stream, &self.meter);
        let draining = carry::receive(&mut input, sink, flow.of_receiver());
        unless_failed(&self.first_fault, draining).await.map(drop)
    }

    /// Discards the whole input, up to a verified FIN.
    pub(super) async fn discard(&mut self) -> Result<(), EarlyEnd> {
        let mut input = Metered::new(&mut self.stream, &self.meter);
        let mut nowhere = tokio::io::sink();
        let draining = carry::receive_all(&mut input, &mut nowhere);
        unless_failed(&self.first_fault, draining).await.map(drop)
    }

    /// Sends all of `source`, without a FIN.
    pub(super) async fn fill(
        &mut self,
        source: &mut Source,
        flow: FlowOptions,
    ) -> Result<(), EarlyEnd> {
        let mut output = Metered::new(&mut self.stream, &self.meter);
        let filling = carry::send(source, &mut output, flow.of_sender());
        unless_failed(&self.first_fault, filling).await.map(drop)
    }

    /// Waits for `event`. Fails earlier if the stream breaks, the peer stops reading, or the order fails.
    pub(super) async fn until<T>(&self, event: impl Future<Output = T>) -> Result<T, EarlyEnd> {
        let watch = self.stream.watch();
        unless_failed(&self.first_fault, carry::unless_interrupted(&watch, event)).await
    }

    /// Sends the FIN, and waits until the peer has confirmed that its sink accepted all bytes.
    pub(super) async fn finish(&mut self) -> Result<(), EarlyEnd> {
        unless_failed(&self.first_fault, self.stream.finish()).await
    }

    /// Fails the order because this edge broke. The peers on all edges receive the reason.
    pub(super) fn broken(&self, error: Error) {
        self.first_fault.broken(error, &self.peer, &self.stage);
    }

    /// Fails the order because of a failure in this process: of a file or a pipe, say.
    pub(super) fn fail_local(&self, text: impl Into<String>) {
        let text = text.into();
        let reason = format!("{}: {text}", self.stage);
        self.first_fault.fail(FaultKind::Local, text, reason);
    }

    /// Aborts the stream with the reason of the first failure, if the order has failed.
    pub(super) fn abort_if_failed(&mut self) {
        if self.first_fault.has_failed() {
            self.stream.abort(&self.first_fault.reason());
        }
    }

    /// Closes the edge, and waits until the peer has received how it ended.
    pub(super) async fn close(mut self) {
        self.abort_if_failed();
        self.stream.close().await;
    }
}

/// Waits for `work`. Fails with [`EarlyEnd::Elsewhere`] if another part of the order fails first.
/// `work` is dropped when the order fails.
async fn unless_failed<T, E: Into<EarlyEnd>>(
    first_fault: &FirstFault,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, EarlyEnd> {
    tokio::select! {
        biased;
        result = work => result.map_err(Into::into),
        () = first_fault.failed() => Err(EarlyEnd::Elsewhere),
    }
}

/// The counts of one edge. Other threads read them while the edge is in use.
#[derive(Debug)]
pub(crate) struct Meter {
    bytes: AtomicU64,
    /// The time of the waits that are over.
    blocked_ns: AtomicU64,
    /// When the wait began that is not over, after `made` and at least 1; 0 if there is none.
    waits_since_ns: AtomicU64,
    made: Instant,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            blocked_ns: AtomicU64::new(0),
            waits_since_ns: AtomicU64::new(0),
            made: Instant::now(),
        }
    }
}

impl Meter {
    /// Returns the number of bytes that the stage has received from the edge or sent into it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how long the stage has waited so far because the edge had no bytes to read or no room to write. A call
    /// at the moment in which a wait ends may leave it out.
    pub(super) fn blocked(&self) -> Duration {
        let waits = match self.waits_since_ns.load(Ordering::Relaxed) {
            0 => 0,
            since => self.now_ns().saturating_sub(since),
        };
        Duration::from_nanos(self.blocked_ns.load(Ordering::Relaxed) + waits)
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        let now = u64::try_from(self.made.elapsed().as_nanos());
        now.unwrap_or(u64::MAX).max(1)
    }
}

impl Observer for Meter {
    fn moved(&self, bytes: usize) {
        self.count(bytes);
    }

    fn wait_begins(&self) {
        self.waits_since_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    fn wait_ends(&self) {
        let since = self.waits_since_ns.swap(0, Ordering::Relaxed);
        let waited = self.now_ns().saturating_sub(since);
        self.blocked_ns.fetch_add(waited, Ordering::Relaxed);
    }
}

/// A stream whose bytes and waiting times are counted. The clock is read only when a wait begins and when it ends, so
/// measuring costs nothing while the stream never waits.
pub(super) struct Metered<'a> {
    stream: &'a mut Stream,
    meter: &'a Arc<Meter>,
    clock: WaitClock,
}

impl<'a> Metered<'a> {
    pub(super) fn new(stream: &'a mut Stream, meter: &'a Arc<Meter>) -> Self {
        let observer: Arc<dyn Observer> = Arc::clone(meter) as _;
        Self {
            stream,
            meter,
            clock: WaitClock::new(Some(observer)),
        }
    }
}

impl AsyncRead for Metered<'_> {
    /// Forwards to the stream without counting: the pump reads through [`AsyncBufRead`].
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncBufRead for Metered<'_> {
    /// Forwards to the stream, and counts the time for which it makes the stage wait.
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { stream, clock, .. } = self.get_mut();
        clock.watch(Pin::new(&mut **stream).poll_fill_buf(cx))
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.meter.count(count);
        Pin::new(&mut *self.stream).consume(count);
    }
}

impl Watched for Metered<'_> {
    fn watch(&self) -> Watch {
        self.stream.watch()
    }

    fn railed(&mut self) -> Option<Railed<'_>> {
        let railed = self.stream.railed()?;
        let observer: Arc<dyn Observer> = Arc::clone(self.meter) as _;
        Some(Railed {
            observer: Some(observer),
            ..railed
        })
    }
}

impl FillSlots for Metered<'_> {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        self.clock.watch(self.stream.poll_slot(cx))
    }

    fn advance(&mut self, count: usize) {
        self.meter.count(count);
        self.stream.advance(count);
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.post(cx)
    }
}
