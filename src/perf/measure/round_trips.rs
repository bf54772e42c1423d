//! Counts the times of messages there and back.

use std::time::{Duration, Instant};

use super::clock::MeasureClock;
use crate::perf::{histogram::LatencyHistogram, messages::LatencyResult};

/// The part of the time in which messages are sent before any is counted, as a divisor: connections, caches and the clocks of
/// processors need some messages to settle.
const WARM_UP_PART: u32 = 10;

/// The times of messages there and back, one after the other.
pub(super) struct RoundTrips {
    histogram: LatencyHistogram,
    whole: Duration,
    /// True until the first message that counts.
    is_warming: bool,
    /// The end of the warm-up, or of the measurement.
    until: Instant,
    clock: MeasureClock,
    sent: Instant,
}

impl RoundTrips {
    /// Begins just before the first message is sent. Messages are counted for `whole`, after a warm-up.
    pub(super) fn begin(whole: Duration) -> Self {
        let clock = MeasureClock::start();
        let sent = Instant::now();
        Self {
            histogram: LatencyHistogram::default(),
            whole,
            is_warming: true,
            until: sent + whole / WARM_UP_PART,
            clock,
            sent,
        }
    }

    /// Counts a message that has come back. Returns true if another one follows.
    pub(super) fn next(&mut self) -> bool {
        let now = Instant::now();
        if self.is_warming {
            if now >= self.until {
                self.is_warming = false;
                self.clock = MeasureClock::start();
                self.until = now + self.whole;
            }
        } else {
            self.histogram.record(now - self.sent);
        }
        // The next message is sent at once.
        self.sent = now;
        self.is_warming || now < self.until
    }

    /// Returns the times, or those of an end that has only sent messages back.
    pub(super) fn result(self) -> LatencyResult {
        let time = self.clock.time();
        LatencyResult {
            histogram: self.histogram,
            nanos: time.nanos,
            cpu_nanos: time.cpu_nanos,
            transport: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_does_not_count() {
        let mut trips = RoundTrips::begin(Duration::from_millis(10));
        let mut count = 0_u64;
        while trips.next() {
            count += 1;
        }
        let result = trips.result();
        assert!(result.histogram.count() < count + 1, "{count}");
        assert!(result.histogram.count() > 0);
        assert!(result.nanos >= 10_000_000);
    }
}
