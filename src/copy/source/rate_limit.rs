//! The rate of all lanes together.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The time that a rate may be made up for: bytes that were not sent for longer are not caught up.
const BURST: Duration = Duration::from_millis(100);

/// The fewest bytes that are sent at a time.
const MIN_PIECE: usize = 4 << 10;

/// A limit of the bytes per second, shared by all lanes.
pub(crate) struct RateLimit {
    bytes_per_second: u64,
    /// When all bytes that were sent so far may have been sent.
    paid: Mutex<Instant>,
}

impl RateLimit {
    /// Returns a limit. A rate of 0 counts as 1 byte per second.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            paid: Mutex::new(Instant::now()),
        }
    }

    /// Returns the most bytes that are sent at a time: those of a twentieth of a second, so that a slow rate is even.
    pub(crate) fn most_bytes(&self) -> usize {
        let piece = usize::try_from(self.bytes_per_second / 20).unwrap_or(usize::MAX);
        piece.max(MIN_PIECE)
    }

    /// Counts bytes that were sent, and returns how long the caller has to wait now.
    pub(crate) fn count(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        #[allow(clippy::cast_precision_loss, reason = "a duration of some seconds")]
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *paid = (*paid).max(earliest) + cost;
        paid.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_bytes_takes_a_second() {
        let limit = RateLimit::new(1 << 20);
        assert_eq!(limit.most_bytes(), (1 << 20) / 20);
        let mut wait = Duration::ZERO;
        for _ in 0..32 {
            wait = limit.count(1 << 15);
        }
        assert!(wait > Duration::from_millis(800) && wait <= Duration::from_secs(1));
        assert_eq!(RateLimit::new(10).most_bytes(), MIN_PIECE);
    }
}
