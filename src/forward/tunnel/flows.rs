//! The connections of one stream of a tunnel, at one end: their states, which the tasks of the stream share, what a
//! program does with them, and which of them can go on.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use futures::task::AtomicWaker;
use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    end::TunnelEnd,
    messages::{ForwardRefusal, OpenTarget, RefusalKind, TUNNEL_VERSION, TunnelMessage, encode},
    socket::{LocalSocket, SocketReader, SocketWriter},
};
use crate::{
    forward::mux::{Mux, frame::FlowId},
    places::Place,
};

/// Receives what happens to connections.
pub(crate) type TunnelObserver = Arc<dyn Fn(TunnelEvent) + Send + Sync>;

/// What happens to the connections of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TunnelEvent {
    /// A connection was made.
    Connected(FlowLabel),
    /// A connection could not be made.
    Refused(FlowLabel, ForwardRefusal),
    /// A client of `-D` has sent no request that can be carried out.
    NoRequest {
        /// The client.
        from: String,
        reason: String,
    },
    /// A connection has ended.
    Closed {
        /// Its ends.
        label: FlowLabel,
        /// The bytes that went into the tunnel here.
        sent: u64,
        /// The bytes that came out of the tunnel here.
        received: u64,
        is_reset: bool,
    },
    /// All streams of the tunnel are connected, or those that can be.
    Streams {
        /// The number of streams.
        count: usize,
        /// Why there are fewer than both ends want.
        missing: Option<String>,
    },
    /// The far end listens.
    Listening {
        /// The number of the listener.
        id: u32,
        /// The port of TCP.
        port: Option<u16>,
    },
}

/// The two ends of a connection, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlowLabel {
    /// The program that has connected.
    pub(crate) from: String,
    /// What it is connected to.
    pub(crate) to: String,
}

/// The counts of a tunnel, which may be read at any time.
#[derive(Debug, Default)]
pub(crate) struct TunnelCounts {
    pub(crate) open: AtomicU64,
    /// The connections that were made so far.
    pub(crate) made: AtomicU64,
    /// The bytes of connections that went into the tunnel here.
    pub(crate) sent: AtomicU64,
    /// The bytes of connections that came out of the tunnel here.
    pub(crate) received: AtomicU64,
}

/// What the tasks of one stream of a tunnel share, at one end.
pub(super) struct TunnelShared {
    state: Mutex<TunnelState>,
    /// The connections with bytes of local programs.
    pub(super) readable: Arc<ReadyQueue>,
    /// The connections whose local programs accept bytes.
    pub(super) writable: Arc<ReadyQueue>,
    /// What all streams of this end share.
    pub(super) end: Arc<TunnelEnd>,
    /// The place of the stream in its tunnel.
    pub(super) kind: StreamKind,
    /// Cancelled when the peer has sent its first message.
    pub(super) greeted: CancellationToken,
}

/// The place of a stream in its tunnel.
#[derive(Debug)]
pub(super) enum StreamKind {
    /// The stream with which the tunnel begins, and which ends last.
    First,
    /// A further stream. The runtime is that of its thread; none if all streams have one runtime.
    Further(Option<Handle>),
}

/// The state behind the lock.
pub(super) struct TunnelState {
    pub(super) mux: Mux,
    /// The connections of this end that the peer has not answered.
    pub(super) asked: HashMap<FlowId, oneshot::Sender<Result<(), ForwardRefusal>>>,
    /// The connections that this end makes for the peer: the sender is dropped when the peer gives one up.
    pub(super) connecting: HashMap<FlowId, oneshot::Sender<Infallible>>,
    /// The sockets that the sending task has not taken over.
    pub(super) new_readers: Vec<(FlowId, SocketReader)>,
    /// The sockets that the receiving task has not taken over.
    pub(super) new_writers: Vec<(FlowId, SocketWriter)>,
    /// Connections that the sending task must drop.
    pub(super) cut_readers: Vec<FlowId>,
    /// Connections that the receiving task must drop.
    pub(super) cut_writers: Vec<FlowId>,
    /// Connections to whose programs nothing can be written any more: the sending task sends what the programs wrote
    /// before.
    pub(super) failed_writers: Vec<(FlowId, RestEnd)>,
    /// Connections that may send again.
    pub(super) unblocked: Vec<FlowId>,
    /// No more connections are made, and the tunnel ends with the last one.
    pub(super) is_closing: bool,
    flows: HashMap<FlowId, FlowRecord>,
}

/// A connection whose sockets are open.
struct FlowRecord {
    label: FlowLabel,
    sent: u64,
    received: u64,
    /// The directions that have not ended.
    directions: u8,
    _place: Option<Arc<Place>>,
}

/// How the bytes end that a program wrote before its connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestEnd {
    Reset,
    /// By an end, which the program sent before it refused more bytes. A reset follows.
    Fin,
}

/// The time without progress after which bytes that a program does not take no longer delay a reset. As long as the
/// program reads now and then, all of them reach it, as they would from the buffers of its own kernel. A program that
/// does not read may wait for the reset, in a `write` for example.
pub(super) const RESET_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) enum AskingEnd {
    /// This end.
    Own,
    /// The peer, which may have this connection.
    Peer(Option<Arc<Place>>),
}

impl TunnelShared {
    /// Returns a stream of this end before its first frame.
    pub(super) fn new(end: &Arc<TunnelEnd>, kind: StreamKind) -> Self {
        let mut mux = Mux::new(end.numbers, &end.budget);
        let hello = TunnelMessage::Hello {
            version: TUNNEL_VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        mux.send_message(encode(&hello).unwrap_or_default());
        let state = TunnelState {
            mux,
            asked: HashMap::new(),
            connecting: HashMap::new(),
            new_readers: Vec::new(),
            new_writers: Vec::new(),
            cut_readers: Vec::new(),
            cut_writers: Vec::new(),
            failed_writers: Vec::new(),
            unblocked: Vec::new(),
            is_closing: false,
            flows: HashMap::new(),
        };
        Self {
            state: Mutex::new(state),
            readable: Arc::default(),
            writable: Arc::default(),
            end: Arc::clone(end),
            kind,
            greeted: CancellationToken::new(),
        }
    }

    /// Locks the state, for a few instructions.
    pub(super) fn lock(&self) -> MutexGuard<'_, TunnelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to the other end.
    pub(super) fn tell(&self, message: &TunnelMessage) {
        if let Some(bytes) = encode(message) {
            self.lock().mux.send_message(bytes);
            self.readable.wake();
        }
    }

    /// Begins a connection. Returns none if no more can be made.
    pub(super) fn ask(
        &self,
        target: &OpenTarget,
    ) -> Option<(FlowId, oneshot::Receiver<Result<(), ForwardRefusal>>)> {
        let target = encode(target)?;
        let mut state = self.lock();
        if state.is_closing || self.end.over.is_cancelled() {
            return None;
        }
        let id = state.mux.open(target)?;
        let (sender, answer) = oneshot::channel();
        state.asked.insert(id, sender);
        drop(state);
        self.readable.wake();
        Some((id, answer))
    }

    /// Gives up a connection that has no socket here.
    pub(super) fn give_up(&self, id: FlowId) {
        let mut state = self.lock();
        state.asked.remove(&id);
        state.mux.reset(id);
        state.cut_writers.push(id);
        drop(state);
        self.readable.wake();
        self.writable.wake();
    }

    /// Records that this end makes a connection for the peer. The receiver ends if the peer gives the connection up.
    pub(super) fn connecting(&self, id: FlowId) -> oneshot::Receiver<Infallible> {
        let (sender, given_up) = oneshot::channel();
        self.lock().connecting.insert(id, sender);
        given_up
    }

    /// Refuses a connection that the peer has asked for.
    pub(super) fn refuse(&self, id: FlowId, label: FlowLabel, refusal: &ForwardRefusal) {
        let mut state = self.lock();
        state.connecting.remove(&id);
        state.mux.refuse(id, encode(refusal).unwrap_or_default());
        drop(state);
        self.readable.wake();
        (self.end.observer)(TunnelEvent::Refused(label, refusal.clone()));
    }

    /// Joins a connection to a local socket. The peer is answered if it has asked for it.
    pub(super) fn attach(
        &self,
        id: FlowId,
        socket: LocalSocket,
        label: FlowLabel,
        asking: AskingEnd,
    ) {
        let (reader, writer) = socket.into_directions();
        let mut state = self.lock();
        if !state.mux.is_live(id) || self.end.over.is_cancelled() {
            // The peer has reset the connection meanwhile. The socket is reset too.
            return;
        }
        let place = match asking {
            AskingEnd::Own => None,
            AskingEnd::Peer(place) => {
                state.connecting.remove(&id);
                state.mux.accept(id);
                place
            }
        };
        let record = FlowRecord {
            label: label.clone(),
            sent: 0,
            received: 0,
            directions: 2,
            _place: place,
        };
        state.flows.insert(id, record);
        state.new_readers.push((id, reader));
        state.new_writers.push((id, writer));
        drop(state);
        self.end.counts.open.fetch_add(1, Ordering::Relaxed);
        self.end.counts.made.fetch_add(1, Ordering::Relaxed);
        (self.end.observer)(TunnelEvent::Connected(label));
        self.readable.wake();
        self.writable.wake();
    }

    /// Makes no more connections, and ends the stream with the last one.
    pub(super) fn close(&self) {
        self.lock().is_closing = true;
        self.readable.wake();
    }

    /// Returns true if the stream may end, once it has no connections.
    pub(super) fn may_end(&self) -> bool {
        matches!(self.kind, StreamKind::Further(_)) || self.end.have_further_ended()
    }

    /// Records that one direction of a connection has ended in order.
    pub(super) fn direction_ended(&self, state: &mut TunnelState, id: FlowId) {
        if let Some(record) = state.flows.get_mut(&id) {
            record.directions -= 1;
            if record.directions == 0 {
                self.flow_ended(state, id, false);
            }
        }
    }

    /// Records that a connection has ended.
    pub(super) fn flow_ended(&self, state: &mut TunnelState, id: FlowId, is_reset: bool) {
        let Some(record) = state.flows.remove(&id) else {
            return;
        };
        self.end.counts.open.fetch_sub(1, Ordering::Relaxed);
        (self.end.observer)(TunnelEvent::Closed {
            label: record.label,
            sent: record.sent,
            received: record.received,
            is_reset,
        });
        if state.is_closing {
            self.readable.wake();
        }
    }
}

impl TunnelState {
    /// Returns true if a local socket belongs to the connection, which has not been reset.
    pub(super) fn has_socket(&self, id: FlowId) -> bool {
        self.flows.contains_key(&id)
    }

    /// Returns true if a program at this port of this machine has a connection here.
    #[cfg(test)]
    pub(super) fn has_flow_from(&self, port: u16) -> bool {
        let own = format!("127.0.0.1:{port}");
        self.flows.values().any(|flow| flow.label.from == own)
    }

    /// Counts bytes that went into the tunnel.
    pub(super) fn count_sent(&mut self, id: FlowId, count: usize) {
        if let Some(record) = self.flows.get_mut(&id) {
            record.sent += count as u64;
        }
    }

    /// Counts bytes that came out of the tunnel.
    pub(super) fn count_received(&mut self, id: FlowId, count: usize) {
        if let Some(record) = self.flows.get_mut(&id) {
            record.received += count as u64;
        }
    }
}

/// Makes connections through a tunnel. Clones make connections through the same tunnel.
#[derive(Clone)]
pub(crate) struct TunnelHandle {
    pub(super) end: Arc<TunnelEnd>,
}

/// A connection that the far end has made. Without a local socket it is reset when dropped.
pub(crate) struct OpenedFlow {
    shared: Arc<TunnelShared>,
    id: FlowId,
    label: Option<FlowLabel>,
}

impl TunnelHandle {
    pub(super) fn new(end: &Arc<TunnelEnd>) -> Self {
        let end = Arc::clone(end);
        Self { end }
    }

    /// Asks the other end for a connection over the stream with the fewest, and waits for its answer. `from` names the
    /// program that has connected.
    /// Dropping the future gives the connection up.
    pub(crate) async fn open(
        &self,
        target: &OpenTarget,
        label: FlowLabel,
    ) -> Result<OpenedFlow, ForwardRefusal> {
        let asked = self.end.idlest().map(|shared| {
            let asked = shared.ask(target);
            asked.map(|(id, answer)| (shared, id, answer))
        });
        let result = match asked {
            None => Err(over()),
            Some(None) if self.end.over.is_cancelled() => Err(over()),
            Some(None) => Err(ForwardRefusal::full()),
            Some(Some((shared, id, answer))) => {
                let flow = OpenedFlow {
                    shared,
                    id,
                    label: Some(label.clone()),
                };
                flow.answered(answer).await
            }
        };
        result.inspect_err(|refusal| {
            (self.end.observer)(TunnelEvent::Refused(label, refusal.clone()));
        })
    }

    /// Removes the paths of the UNIX sockets at which this end listens.
    pub(crate) fn remove_paths(&self) {
        self.end.remove_paths();
    }

    /// Makes no more connections. The tunnel ends in order when the last one has ended.
    pub(crate) fn close(&self) {
        self.end.close();
    }

    /// Says why the tunnel is about to end, to the peers of its further streams. The first one is the caller's.
    pub(crate) fn give_reason(&self, reason: &str) {
        self.end.give_reason(reason);
    }
}

impl OpenedFlow {
    async fn answered(
        mut self,
        answer: oneshot::Receiver<Result<(), ForwardRefusal>>,
    ) -> Result<Self, ForwardRefusal> {
        let over = self.shared.end.over.clone();
        let answer = tokio::select! {
            answer = answer => answer.unwrap_or_else(|_| Err(reset())),
            () = over.cancelled() => Err(self::over()),
        };
        match answer {
            Ok(()) => Ok(self),
            Err(refusal) => {
                // The connection has ended: nothing is left to give up.
                self.label = None;
                Err(refusal)
            }
        }
    }

    /// Joins the connection to a local socket.
    pub(crate) fn attach(mut self, socket: LocalSocket) {
        let socket = match &self.shared.kind {
            StreamKind::Further(Some(runtime)) => socket.moved_to(runtime),
            StreamKind::First | StreamKind::Further(None) => Ok(socket),
        };
        // A socket that cannot be moved is reset, and the connection with it.
        if let Ok(socket) = socket
            && let Some(label) = self.label.take()
        {
            self.shared.attach(self.id, socket, label, AskingEnd::Own);
        }
    }
}

impl Drop for OpenedFlow {
    fn drop(&mut self) {
        if self.label.is_some() {
            self.shared.give_up(self.id);
        }
    }
}

fn over() -> ForwardRefusal {
    ForwardRefusal {
        kind: RefusalKind::HostUnreachable,
        text: "the tunnel has ended".to_owned(),
    }
}

fn reset() -> ForwardRefusal {
    ForwardRefusal {
        kind: RefusalKind::Other,
        text: "the connection was reset".to_owned(),
    }
}

/// The connections of one direction whose sockets are ready, and the task that serves them.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    ids: Mutex<Vec<FlowId>>,
    task: AtomicWaker,
}

/// The waker of one connection.
#[derive(Debug)]
struct FlowWaker {
    id: FlowId,
    is_queued: AtomicBool,
    queue: Arc<ReadyQueue>,
}

/// The place of a connection in a [`ReadyQueue`].
#[derive(Debug)]
pub(super) struct FlowReadiness {
    flow: Arc<FlowWaker>,
    waker: Waker,
}

impl ReadyQueue {
    /// Makes the current task the one that serves the connections.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    pub(super) fn wake(&self) {
        self.task.wake();
    }

    /// Returns a new connection's place.
    pub(super) fn place(self: &Arc<Self>, id: FlowId) -> FlowReadiness {
        let flow = Arc::new(FlowWaker {
            id,
            is_queued: AtomicBool::new(false),
            queue: Arc::clone(self),
        });
        let waker = Waker::from(Arc::clone(&flow));
        FlowReadiness { flow, waker }
    }

    /// Moves the connections that are ready to the end of `ready`.
    pub(super) fn drain_into(&self, ready: &mut Vec<FlowId>) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ready.append(&mut ids);
    }
}

impl FlowReadiness {
    /// Returns the context that queues the connection when its socket is ready, and forgets that it was queued.
    pub(super) fn context(&self) -> Context<'_> {
        self.flow.is_queued.store(false, Ordering::Release);
        Context::from_waker(&self.waker)
    }
}

impl Wake for FlowWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            let ids = &self.queue.ids;
            let mut ids = ids.lock().unwrap_or_else(PoisonError::into_inner);
            ids.push(self.id);
            drop(ids);
            self.queue.wake();
        }
    }
}
