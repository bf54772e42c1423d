//! One end of a tunnel: what its streams share, and over which of them a connection goes.
//!
//! A tunnel begins with one stream. Further ones join it when their peer has sent its first message, and each is carried
//! on a thread of its own. A connection stays on the stream on which it was made. If any stream that has joined fails,
//! the tunnel ends and all connections are reset, as if it had one stream. In order, the first stream ends last.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    flows::{TunnelCounts, TunnelObserver, TunnelShared},
    listener::{ForwardListener, SocketPath},
};
use crate::forward::mux::{MuxEnd, WindowBudget};

/// The most names of targets that are looked up at a time for one peer. Each lookup has a thread.
const MOST_LOOKUPS: usize = 16;

/// What all streams of one end of a tunnel share.
pub(crate) struct TunnelEnd {
    pub(super) numbers: MuxEnd,
    /// The memory for bytes of all connections that programs have not read.
    pub(super) budget: Arc<WindowBudget>,
    pub(super) counts: Arc<TunnelCounts>,
    pub(super) observer: TunnelObserver,
    /// Allows one more name of a target to be looked up for the peer.
    pub(super) lookups: Arc<Semaphore>,
    /// Cancelled when the tunnel has ended: then all of its tasks end.
    pub(super) over: CancellationToken,
    /// Cancelled when no more connections are made.
    pub(super) closing: CancellationToken,
    /// Why the tunnel has ended, for the peers of its streams.
    reason: OnceLock<String>,
    /// The streams that carry connections.
    joined: Mutex<JoinedStreams>,
    /// The further streams that have not ended, those that are being connected included.
    further: AtomicUsize,
    /// The paths of the UNIX sockets at which this end listens.
    paths: Mutex<Vec<SocketPath>>,
}

/// The streams that carry connections: the first one, and others in any order.
#[derive(Default)]
struct JoinedStreams {
    streams: Vec<Weak<TunnelShared>>,
    /// The index from which the next connection looks for its stream.
    next: usize,
}

impl TunnelEnd {
    pub(super) fn new(numbers: MuxEnd, observer: TunnelObserver) -> Self {
        Self {
            numbers,
            budget: Arc::default(),
            counts: Arc::default(),
            observer,
            lookups: Arc::new(Semaphore::new(MOST_LOOKUPS)),
            over: CancellationToken::new(),
            closing: CancellationToken::new(),
            reason: OnceLock::new(),
            joined: Mutex::default(),
            further: AtomicUsize::new(0),
            paths: Mutex::default(),
        }
    }

    /// Adds a stream to those that carry connections, unless it is one of them.
    pub(super) fn join(&self, shared: &Arc<TunnelShared>) {
        let mut joined = self.joined();
        let new = Arc::downgrade(shared);
        if joined.streams.iter().any(|stream| stream.ptr_eq(&new)) {
            return;
        }
        joined.streams.push(new);
        drop(joined);
        if self.closing.is_cancelled() {
            shared.close();
        }
    }

    /// Returns the number of streams that carry connections.
    pub(super) fn count(&self) -> usize {
        self.joined().live().count()
    }

    /// Returns the streams that carry connections, the first one first.
    #[cfg(test)]
    pub(super) fn streams(&self) -> Vec<Arc<TunnelShared>> {
        self.joined().live().collect()
    }

    /// Returns the stream with the fewest connections. Streams with equally many take turns. Returns none if the tunnel
    /// has ended.
    pub(super) fn idlest(&self) -> Option<Arc<TunnelShared>> {
        let mut joined = self.joined();
        let mut streams: Vec<_> = joined.live().collect();
        if streams.len() > 1 {
            let first = joined.next % streams.len();
            streams.rotate_left(first);
            let least = (0..streams.len()).min_by_key(|at| streams[*at].lock().mux.count())?;
            joined.next = first + least + 1;
            streams.swap(0, least);
        }
        streams.into_iter().next()
    }

    /// Makes no more connections, and ends each stream with its last one.
    pub(super) fn close(&self) {
        self.closing.cancel();
        let joined = self.joined();
        for stream in joined.live() {
            stream.close();
        }
    }

    /// Records why the tunnel ends, unless a reason is recorded already.
    pub(super) fn give_reason(&self, reason: &str) {
        let _ = self.reason.set(reason.to_owned());
    }

    pub(super) fn reason(&self) -> String {
        let reason = self.reason.get().cloned();
        reason.unwrap_or_else(|| "the tunnel has ended".to_owned())
    }

    /// Returns true if all further streams have ended: then the first one may.
    pub(super) fn have_further_ended(&self) -> bool {
        self.further.load(Ordering::Acquire) == 0
    }

    /// Takes over the path of a listener, to remove it when the tunnel ends. It is removed at once if the tunnel has
    /// ended.
    pub(super) fn own_path(&self, listener: &mut ForwardListener) {
        let mut paths = self.paths();
        let path = listener.take_path();
        if !self.over.is_cancelled() {
            paths.extend(path);
        }
    }

    /// Removes the paths of the UNIX sockets at which this end listens.
    pub(super) fn remove_paths(&self) {
        self.paths().clear();
    }

    fn paths(&self) -> MutexGuard<'_, Vec<SocketPath>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn joined(&self) -> MutexGuard<'_, JoinedStreams> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JoinedStreams {
    fn live(&self) -> impl Iterator<Item = Arc<TunnelShared>> {
        self.streams.iter().filter_map(Weak::upgrade)
    }
}

/// Ends a tunnel when it is dropped: its tasks end, and the paths of its UNIX sockets are removed at once. The tasks
/// cannot do that, because the process may exit before they run again.
pub(crate) struct EndGuard(pub(super) Arc<TunnelEnd>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let mut paths = self.0.paths();
        self.0.over.cancel();
        paths.clear();
    }
}

/// A further stream that has not ended. Dropping the value lets the first one end.
pub(super) struct FurtherStream(Arc<TunnelEnd>);

impl FurtherStream {
    pub(super) fn new(end: &Arc<TunnelEnd>) -> Self {
        end.further.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(end))
    }
}

impl Drop for FurtherStream {
    fn drop(&mut self) {
        self.0.further.fetch_sub(1, Ordering::AcqRel);
        let first = self.0.joined().live().next();
        if let Some(first) = first {
            first.readable.wake();
        }
    }
}
