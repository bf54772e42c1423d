//! How far the data path of a stream has got, and the watch that detects when it gets no further.
//!
//! Each ping says how many bytes its sender has sent on the data path, and how many it has received. So an end knows of
//! bytes that are on their way to it. If none of them arrives for a long time, although the control connection works, the
//! data path is dead.
//!
//! | data path | `sent` | `received` |
//! |---|---|---|
//! | TCP | bytes that the socket has accepted, headers included | bytes that were read from the socket |
//! | RDMA | the offset up to which writes have completed | the offset up to which frames have arrived |
//!
//! The receiving end judges: only it can distinguish bytes that have not arrived from bytes that it has not read. The
//! watch only detects that the counts stand still; the [data path](StalledPath) says whether that is a fault.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    message::Message,
    state::{Failure, State},
};
use crate::Fault;

/// The time by which the data path may be silent for longer than the control connection. If the host or its network is
/// down, both are silent, and the control connection is the one to report it.
const MARGIN: Duration = Duration::from_secs(1);

/// The time after which the data path is asked again before the stream fails: another thread may have read the last byte
/// and not yet counted it.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// The counts of both ends. The lanes store the counts of this end, and pings bring those of the peer.
#[derive(Default)]
pub(crate) struct DataProgress {
    sent: AtomicU64,
    received: AtomicU64,
    peer_sent: AtomicU64,
    peer_received: AtomicU64,
    path: OnceLock<Box<dyn StalledPath>>,
}

/// A data path whose counts stand still.
pub(crate) trait StalledPath: Send + Sync {
    /// Handles a stall: returns `Ok` if the bytes have arrived and only were not read, or if the data path repairs itself.
    ///
    /// # Errors
    ///
    /// The fault that ends the stream.
    fn stalled(&self, stall: Stall) -> Result<(), Fault>;
}

/// Counts of the data path that stand still. Displayed, a stall is the reason why the data connection counts as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stall {
    /// The peer has sent more than has arrived here.
    #[error("none of the {bytes} bytes that were sent on it arrived for {silence:.1?}")]
    Arrivals {
        /// The number of bytes that are missing.
        bytes: u64,
        /// The time for which none has arrived.
        silence: Duration,
    },
    /// The peer has received more than this end knows to be delivered.
    #[error(
        "this end's device has not completed the writes of {bytes} bytes for {silence:.1?}, and they have arrived"
    )]
    Completions {
        /// The number of bytes whose writes have not completed.
        bytes: u64,
        /// The time for which none has completed.
        silence: Duration,
    },
}

impl From<Stall> for io::Error {
    fn from(stall: Stall) -> Self {
        Self::new(io::ErrorKind::TimedOut, stall)
    }
}

impl From<Stall> for Fault {
    fn from(stall: Stall) -> Self {
        Self::Data(Arc::new(stall.into()))
    }
}

impl DataProgress {
    /// Records that at least `bytes` in all have been sent: of two ways to the peer one may be ahead.
    #[cfg(feature = "rdma")]
    pub(crate) fn raise_sent(&self, bytes: u64) {
        self.sent.fetch_max(bytes, Relaxed);
    }

    /// Returns the number of bytes that have arrived at this end and, as far as is known, at the peer.
    #[cfg(feature = "rdma")]
    pub(crate) fn arrived_at_both(&self) -> u64 {
        let there = self.peer_received.load(Relaxed);
        self.received().saturating_add(there)
    }

    /// Records that `bytes` in all have been sent.
    pub(crate) fn set_sent(&self, bytes: u64) {
        self.sent.store(bytes, Relaxed);
    }

    /// Records that `bytes` in all have been received.
    pub(crate) fn set_received(&self, bytes: u64) {
        self.received.store(bytes, Relaxed);
    }

    /// Returns the number of bytes that have been sent.
    #[cfg(feature = "rdma")]
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Returns the number of bytes that have been received.
    #[cfg(feature = "rdma")]
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Sets the data path that handles stalls, once.
    pub(crate) fn set_path(&self, path: impl StalledPath + 'static) {
        let _ = self.path.set(Box::new(path));
    }

    /// Records the counts of the peer.
    pub(super) fn set_peer(&self, sent: u64, received: u64) {
        self.peer_sent.store(sent, Relaxed);
        self.peer_received.store(received, Relaxed);
    }

    /// Returns a ping with the counts of this end.
    pub(super) fn ping(&self) -> Message {
        Message::Ping {
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
        }
    }
}

/// Watches that bytes which are on their way arrive.
pub(super) struct DataWatch {
    limit: Duration,
    arrivals: StallClock,
    completions: StallClock,
}

/// The time since which one count stands still, although the peer knows of more.
#[derive(Default)]
struct StallClock {
    known: u64,
    count: u64,
    since: Option<Instant>,
    /// True if the data path called the stall of this count a fault.
    is_suspect: bool,
}

impl DataWatch {
    /// A watch for a stream whose control connection may be silent for `silence`.
    pub(super) fn new(silence: Duration) -> Self {
        Self {
            limit: silence.saturating_add(MARGIN),
            arrivals: StallClock::default(),
            completions: StallClock::default(),
        }
    }

    /// Compares the counts with those of the last call. A clock starts when the peer knows of more bytes, and starts again
    /// with each byte.
    pub(super) fn note(&mut self, progress: &DataProgress, now: Instant) {
        let of = |count: &AtomicU64| count.load(Relaxed);
        self.arrivals
            .note(of(&progress.peer_sent), of(&progress.received), now);
        self.completions
            .note(of(&progress.peer_received), of(&progress.sent), now);
    }

    /// Starts the clocks again: this process was stopped, and has not read what arrived in the meantime.
    pub(super) fn restart(&mut self) {
        (self.arrivals.since, self.completions.since) = (None, None);
        (self.arrivals.is_suspect, self.completions.is_suspect) = (false, false);
    }

    /// Returns the time when the next [`check`](Self::check) is due, if a count stands still.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let since = [self.arrivals.since, self.completions.since];
        since.into_iter().flatten().min()?.checked_add(self.limit)
    }

    /// Asks the data path about a count that has stood still for too long. If it calls that a fault, asks again after
    /// [`SECOND_LOOK`], and fails the stream if the answer is the same and the count too.
    ///
    /// The answer is right even if tasks of this process were blocked meanwhile: the data path looks for bytes that were
    /// not read, and a byte that was read starts the clock again.
    pub(super) fn check(&mut self, state: &State, now: Instant) {
        self.note(&state.data, now);
        let Some(path) = state.data.path.get() else {
            return;
        };
        let silence = self.limit;
        let arrivals: fn(u64, Duration) -> Stall =
            |bytes, silence| Stall::Arrivals { bytes, silence };
        let completions: fn(u64, Duration) -> Stall =
            |bytes, silence| Stall::Completions { bytes, silence };
        for (clock, stall) in [
            (&mut self.arrivals, arrivals),
            (&mut self.completions, completions),
        ] {
            let Some(bytes) = clock.take_overdue(silence, now) else {
                continue;
            };
            let stall = stall(bytes, silence);
            // A reader that has stopped leaves the rest unread.
            if matches!(stall, Stall::Arrivals { .. }) && !state.receives() {
                continue;
            }
            match path.stalled(stall) {
                Err(fault) if clock.is_suspect => state.fail(Failure::Fault(fault)),
                Err(_) => clock.suspect(silence, now),
                Ok(()) => clock.is_suspect = false,
            }
        }
    }
}

impl StallClock {
    fn note(&mut self, known: u64, count: u64, now: Instant) {
        if known <= count {
            self.since = None;
        } else if self.since.is_none() || self.count != count {
            self.since = Some(now);
        }
        self.is_suspect &= known > count && self.count == count;
        (self.known, self.count) = (known, count);
    }

    /// Returns the number of bytes that are missing if the count has stood still for `limit`, and starts the clock again.
    fn take_overdue(&mut self, limit: Duration, now: Instant) -> Option<u64> {
        let since = self.since?;
        if now.duration_since(since) < limit {
            return None;
        }
        self.since = Some(now);
        Some(self.known - self.count)
    }

    /// Makes the clock run out after [`SECOND_LOOK`].
    fn suspect(&mut self, limit: Duration, now: Instant) {
        self.is_suspect = true;
        self.since = now.checked_sub(limit.saturating_sub(SECOND_LOOK));
    }
}

#[cfg(test)]
mod tests;
