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

use std::time::Duration;

use tokio::time::Instant;

use super::{
    data_progress::{DataProgress, Stall},
    state::{Failure, State},
};

/// The time by which the data path may be silent for longer than the control connection. If the host or its network is
/// down, both are silent, and the control connection is the one to report it.
const MARGIN: Duration = Duration::from_secs(1);

/// The time after which the data path is asked again before the stream fails: another thread may have read the last byte
/// and not yet counted it.
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

    /// Compares the counts with those of the last call. A clock starts when the peer knows of more bytes, and starts again
    /// with each byte.
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
    /// The answer is right even if tasks of this process were blocked meanwhile: the data path looks for bytes that were
    /// not read, and a byte that was read starts the clock again.
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
                Err(fault) if clock.is_suspect => state.fail(Failure::Fault(fault)),
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
