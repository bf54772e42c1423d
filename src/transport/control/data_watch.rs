//! The watch that detects that the data path of a stream gets no further, by the counts of both ends.
//!
//! A middlebox can lose a data connection without closing it, and pass the control connection on. The writer's kernel
//! then accepts bytes that never arrive, and no connection ever ends.
//!
//! # Over TCP the receiver judges
//!
//! Only the receiver can tell bytes that have not arrived from bytes that it has not read; a writer that judged would
//! fail whenever a reader's disk is blocked. If the peer has sent more than was read, and not one byte was read for
//! `timeout` and one second, the receiver asks the kernel whether the socket is empty. If it is, nothing has arrived in
//! all that time: a byte that arrived would have been read, which starts the clock again, or would still be there. So
//! the answer is right whatever was blocked or stopped meanwhile: a reader that pauses, a thread that waits for a disk,
//! or a process after SIGSTOP has its bytes in the socket. The socket cannot be empty because of missing credits: the
//! peer counts what it has written, and it writes only what was granted. A slow network delivers something in each such
//! time. The task that stands in for a blocked control task reports counts and never judges.
//!
//! The receiver learns of the bytes within a quarter of `timeout`, and its Abort reaches the writer over the control
//! connection, which works; if it does not, `PeerSilent` ends the writer. Together that is at most 1.25 × `timeout` + 2
//! s from the first lost byte.
//!
//! # Over RDMA
//!
//! The device itself reports a write that does not arrive, after some 4 s. What remains is a completion that never
//! comes.
//!
//! - *Of a frame that has arrived:* the receiver requests a renewal of the link. The renewal runs where the completions
//!   are polled, so it first waits three seconds, and three more each time that it was blocked itself meanwhile. Then
//!   it takes the frames that the peer's device has acknowledged out of their slots, whose order is known, and verifies
//!   them as always. If that happens again before any completion has come, the stream fails.
//! - *Of a write:* the peer has received it, the own device does not complete it. The memory of the write belongs to
//!   the device, so no renewal can free it, and the stream fails.
//!
//! Each ping says how many bytes its sender has sent on the data path, and how many it has received. So an end knows of
//! bytes that are on their way to it. If none of them arrives for a long time, although the control connection works,
//! the data path is dead.
//!
//! | data path | `sent` | `received` |
//! |---|---|---|
//! | TCP | bytes that the socket has accepted, headers included | bytes that were read from the socket |
//! | RDMA | payload whose writes have completed, and that of small frames before which no write is in flight | payload that has arrived |
//!
//! With several rails both are sums over the rails.
//!
//! The receiving end judges: only it can distinguish bytes that have not arrived from bytes that it has not read. The
//! [watch](super::data_watch) only detects that the counts stand still; the [data path](StalledPath) says whether that
//! is a fault.

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
    state::{State, StreamFault},
};
use crate::Fault;

/// The time by which the data path may be silent for longer than the control connection. If the host or its network is
/// down, both are silent, and the control connection is the one to report it.
const MARGIN: Duration = Duration::from_secs(1);

/// The time after which the data path is asked again before the stream fails: another thread may have read the last
/// byte and not yet counted it.
const SECOND_LOOK: Duration = Duration::from_millis(100);

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

    /// Compares the counts with those of the last call. A clock starts when the peer knows of more bytes, and starts
    /// again with each byte.
    pub(super) fn note(&mut self, progress: &DataProgress, now: Instant) {
        self.arrivals.note(progress.arrivals(), now);
        self.completions.note(progress.completions(), now);
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
    /// The answer is right even if tasks of this process were blocked meanwhile: the data path looks for bytes that
    /// were not read, and a byte that was read starts the clock again.
    pub(super) fn check(&mut self, state: &State, now: Instant) {
        self.note(&state.data, now);
        let Some(path) = state.data.path() else {
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
                Err(fault) if clock.is_suspect => state.fail(StreamFault::Found(fault)),
                Err(_) => clock.suspect(silence, now),
                Ok(()) => clock.is_suspect = false,
            }
        }
    }
}

impl StallClock {
    fn note(&mut self, (known, count): (u64, u64), now: Instant) {
        if known <= count {
            self.since = None;
        } else if self.since.is_none() || self.count != count {
            self.since = Some(now);
        }
        self.is_suspect &= known > count && self.count == count;
        (self.known, self.count) = (known, count);
    }

    /// Returns the number of bytes that are missing if the count has stood still for `limit`, and starts the clock
    /// again.
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

/// The counts of both ends. The halves store the counts of this end, and pings bring those of the peer.
#[derive(Default)]
pub(crate) struct DataProgress {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    peer_sent: AtomicU64,
    pub(super) peer_received: AtomicU64,
    path: OnceLock<Box<dyn StalledPath>>,
}

/// A data path whose counts stand still.
pub(crate) trait StalledPath: Send + Sync {
    /// Handles a stall: returns `Ok` if the bytes have arrived and only were not read, or if the data path repairs
    /// itself.
    fn stalled(&self, stall: Stall) -> Result<(), Fault>;
}

/// Counts of the data path that stand still. Displayed, a stall is the reason why the data connection counts as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stall {
    /// The peer has sent more than has arrived here.
    #[error("none of the {bytes} bytes that were sent on it arrived for {silence:.1?}")]
    Arrivals {
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
    /// Records that `bytes` more have been sent, on one of several rails.
    pub(crate) fn add_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
    }

    /// Records that `bytes` more have been received, on one of several rails.
    pub(crate) fn add_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
    }

    /// Records that `bytes` that were sent are sent again: they were lost with their connection.
    pub(crate) fn take_back_sent(&self, bytes: u64) {
        self.sent.fetch_sub(bytes, Relaxed);
    }

    /// Records that `bytes` that were received arrive again: they were a part of a frame.
    pub(crate) fn take_back_received(&self, bytes: u64) {
        self.received.fetch_sub(bytes, Relaxed);
    }

    /// Records that `bytes` in all have been sent.
    #[cfg(test)]
    pub(crate) fn set_sent(&self, bytes: u64) {
        self.sent.store(bytes, Relaxed);
    }

    /// Records that `bytes` in all have been received.
    #[cfg(test)]
    pub(crate) fn set_received(&self, bytes: u64) {
        self.received.store(bytes, Relaxed);
    }

    /// Sets the data path that handles stalls, once.
    pub(crate) fn set_path(&self, path: impl StalledPath + 'static) {
        let _ = self.path.set(Box::new(path));
    }

    /// Returns the data path, if it has been set.
    pub(super) fn path(&self) -> Option<&dyn StalledPath> {
        self.path.get().map(Box::as_ref)
    }

    /// Returns how many bytes the peer has sent, and how many of them have arrived.
    pub(super) fn arrivals(&self) -> (u64, u64) {
        (self.peer_sent.load(Relaxed), self.received.load(Relaxed))
    }

    /// Returns how many bytes the peer has received, and how many this end knows to be delivered.
    pub(super) fn completions(&self) -> (u64, u64) {
        (self.peer_received.load(Relaxed), self.sent.load(Relaxed))
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
            messages: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::{StalledPath, *};
    use crate::{Direction, Fault};

    const SILENCE: Duration = Duration::from_secs(3);
    const LIMIT: Duration = Duration::from_secs(4);

    /// A data path that records its stalls, and fails the stream unless bytes wait unread.
    struct FakePath {
        has_unread: bool,
        stalls: Arc<Mutex<Vec<Stall>>>,
    }

    impl StalledPath for FakePath {
        fn stalled(&self, stall: Stall) -> Result<(), Fault> {
            self.stalls.lock().unwrap().push(stall);
            if self.has_unread {
                Ok(())
            } else {
                Err(stall.into())
            }
        }
    }

    struct Watched {
        state: Arc<State>,
        watch: DataWatch,
        stalls: Arc<Mutex<Vec<Stall>>>,
        start: Instant,
    }

    impl Watched {
        fn new(has_unread: bool) -> Self {
            let state = State::new("hostB".to_owned(), Direction::Both, 2);
            let stalls = Arc::default();
            state.data.set_path(FakePath {
                has_unread,
                stalls: Arc::clone(&stalls),
            });
            Self {
                state,
                watch: DataWatch::new(SILENCE),
                stalls,
                start: Instant::now(),
            }
        }

        fn at(&self, after: Duration) -> Instant {
            self.start + after
        }

        fn note(&mut self, after: Duration) {
            let now = self.at(after);
            self.watch.note(&self.state.data, now);
        }

        /// Checks at this time, and returns the stalls that were found.
        fn check(&mut self, after: Duration) -> Vec<Stall> {
            let now = self.at(after);
            self.watch.check(&self.state, now);
            std::mem::take(&mut *self.stalls.lock().unwrap())
        }
    }

    fn arrivals(bytes: u64) -> Vec<Stall> {
        vec![Stall::Arrivals {
            bytes,
            silence: LIMIT,
        }]
    }

    #[test]
    fn bytes_that_never_arrive_fail_the_stream() {
        let mut watched = Watched::new(false);
        watched.state.data.set_peer(100, 0);
        watched.note(SILENCE);
        assert_eq!(
            watched.watch.deadline(),
            Some(watched.at(SILENCE + LIMIT)),
            "the clock starts with the ping"
        );
        assert!(watched.check(LIMIT).is_empty());
        assert_eq!(watched.check(SILENCE + LIMIT), arrivals(100));
        assert!(!watched.state.failed());
        let again = SILENCE + LIMIT + SECOND_LOOK;
        assert_eq!(watched.watch.deadline(), Some(watched.at(again)));
        assert_eq!(watched.check(again), arrivals(100));
        let error = watched.state.receive_error().unwrap().to_string();
        assert!(error.contains("the data connection broke"), "{error}");
        assert!(error.contains("none of the 100 bytes"), "{error}");
    }

    #[test]
    fn each_byte_starts_the_clock_again() {
        let mut watched = Watched::new(false);
        watched.state.data.set_peer(100, 0);
        for received in 0..50 {
            watched.state.data.set_received(received);
            let time = u32::try_from(received).unwrap() * SILENCE;
            assert!(watched.check(time).is_empty(), "{received}");
        }
        assert_eq!(watched.check(49 * SILENCE + LIMIT), arrivals(51));
    }

    #[test]
    fn a_byte_that_is_counted_late_is_no_fault() {
        let mut watched = Watched::new(false);
        watched.state.data.set_peer(100, 0);
        watched.note(Duration::ZERO);
        assert_eq!(watched.check(LIMIT), arrivals(100));
        watched.state.data.set_received(1);
        assert!(watched.check(LIMIT + SECOND_LOOK).is_empty());
        // The next stall gets a second look too.
        assert_eq!(watched.check(2 * LIMIT + SECOND_LOOK), arrivals(99));
        assert!(!watched.state.failed());
        assert_eq!(watched.check(2 * LIMIT + 2 * SECOND_LOOK), arrivals(99));
        assert!(watched.state.failed());
    }

    #[test]
    fn an_idle_data_path_is_no_stall() {
        let mut watched = Watched::new(false);
        watched.state.data.set_peer(100, 0);
        watched.note(Duration::ZERO);
        watched.state.data.set_received(100);
        watched.note(Duration::ZERO);
        assert_eq!(watched.watch.deadline(), None);
        assert!(watched.check(100 * LIMIT).is_empty());
        // The clock starts again for later bytes.
        watched.state.data.set_peer(101, 0);
        watched.note(100 * LIMIT);
        assert!(watched.check(100 * LIMIT + SILENCE).is_empty());
        assert_eq!(watched.check(101 * LIMIT), arrivals(1));
    }

    #[test]
    fn unread_bytes_are_no_fault() {
        let mut watched = Watched::new(true);
        watched.state.data.set_peer(100, 0);
        watched.note(Duration::ZERO);
        for round in 1..10 {
            assert_eq!(watched.check(round * LIMIT), arrivals(100));
            assert_eq!(
                watched.watch.deadline(),
                Some(watched.at((round + 1) * LIMIT))
            );
        }
        assert!(!watched.state.failed());
    }

    #[test]
    fn a_stopped_process_reads_before_it_judges() {
        let mut watched = Watched::new(false);
        watched.state.data.set_peer(100, 0);
        watched.note(Duration::ZERO);
        watched.watch.restart();
        assert!(watched.check(10 * LIMIT).is_empty());
        assert_eq!(
            watched.watch.deadline(),
            Some(watched.at(11 * LIMIT)),
            "the clock starts when the process continues"
        );
    }

    #[test]
    fn a_reader_that_has_stopped_misses_nothing() {
        let mut watched = Watched::new(false);
        watched.state.data.set_peer(100, 0);
        watched.note(Duration::ZERO);
        watched.state.stop(0);
        assert!(watched.check(LIMIT).is_empty());
        assert!(!watched.state.failed());
    }

    #[test]
    fn writes_that_never_complete_are_noticed_when_they_have_arrived() {
        let mut watched = Watched::new(true);
        watched.state.data.set_sent(10);
        watched.state.data.set_peer(0, 30);
        watched.note(Duration::ZERO);
        let stall = Stall::Completions {
            bytes: 20,
            silence: LIMIT,
        };
        assert_eq!(watched.check(LIMIT), [stall]);
    }

    #[test]
    fn a_time_limit_of_any_length_does_not_overflow() {
        let mut watched = Watched::new(false);
        watched.watch = DataWatch::new(Duration::MAX);
        watched.state.data.set_peer(100, 0);
        watched.note(Duration::ZERO);
        assert_eq!(watched.watch.deadline(), None);
        assert!(watched.check(LIMIT).is_empty());
    }
}
