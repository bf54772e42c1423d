//! The bytes per second over the last 10 s, 1 min and 5 min. Pure, no I/O.

use std::{collections::VecDeque, time::Duration};

use crate::cli::shared::report::rate;

/// The windows, from the shortest to the longest. The first shows what happens now, the last what a transfer of many
/// files does on average.
pub(in crate::cli::rdcp::serve) const RATE_WINDOWS: [Duration; 3] = [
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(300),
];

/// The bytes per second of both directions over each of the [`RATE_WINDOWS`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::cli::rdcp::serve) struct RatesNow {
    /// Bytes per second that arrived, by window.
    pub(in crate::cli::rdcp::serve) received: [f64; RATE_WINDOWS.len()],
    /// Bytes per second that were sent, by window.
    pub(in crate::cli::rdcp::serve) sent: [f64; RATE_WINDOWS.len()],
}

/// Computes rates from samples of running totals.
///
/// Keeps the last sample of each second of the longest window: 302 samples at most, however often they are added.
#[derive(Debug, Default)]
pub(in crate::cli::rdcp::serve) struct RateSampler {
    /// In the order of time; the first is at or before the begin of the longest window, unless the server is younger.
    samples: VecDeque<RateSample>,
}

impl RateSampler {
    /// Adds the totals at the time `now`, counted from any fixed moment. Returns the rates up to then.
    ///
    /// The first sample is the begin, from which the rates of a young server are counted. A sample that is older than
    /// the last one is ignored. A total that has decreased counts as one that stands still.
    pub(in crate::cli::rdcp::serve) fn add_sample(
        &mut self,
        now: Duration,
        bytes_in: u64,
        bytes_out: u64,
    ) -> RatesNow {
        let last = self.samples.back().copied().unwrap_or_default();
        if now >= last.at {
            let sample = RateSample {
                at: now,
                received: bytes_in.max(last.received),
                sent: bytes_out.max(last.sent),
            };
            // The first sample stays, so that the begin is exact.
            if self.samples.len() > 1 && last.at.as_secs() == now.as_secs() {
                self.samples.pop_back();
            }
            self.samples.push_back(sample);
            self.forget_before(now.saturating_sub(LONGEST));
        }
        self.rates()
    }

    /// Returns the rates up to the last sample; zeros before there are two.
    pub(in crate::cli::rdcp::serve) fn rates(&self) -> RatesNow {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return RatesNow::default();
        };
        let mut rates = RatesNow::default();
        for (at, window) in RATE_WINDOWS.into_iter().enumerate() {
            let from = last.at.saturating_sub(window).max(first.at);
            let begin = self.totals_at(from);
            let seconds = last.at.saturating_sub(from).as_secs_f64();
            rates.received[at] = rate(last.received - begin.received, seconds);
            rates.sent[at] = rate(last.sent - begin.sent, seconds);
        }
        rates
    }

    /// Removes samples from which no total at `time` or later is computed.
    fn forget_before(&mut self, time: Duration) {
        while self.samples.get(1).is_some_and(|second| second.at <= time) {
            self.samples.pop_front();
        }
    }

    /// Returns the totals at a time between the first and the last sample. Between two samples, totals are taken to
    /// grow evenly.
    fn totals_at(&self, time: Duration) -> RateSample {
        let after = self.samples.partition_point(|sample| sample.at <= time);
        let before = self.samples[after.saturating_sub(1)];
        self.samples
            .get(after)
            .map_or(before, |after| before.between(*after, time))
    }
}

/// The longest of the [`RATE_WINDOWS`].
const LONGEST: Duration = RATE_WINDOWS[RATE_WINDOWS.len() - 1];

/// The totals at one time.
#[derive(Debug, Clone, Copy, Default)]
struct RateSample {
    at: Duration,
    received: u64,
    sent: u64,
}

impl RateSample {
    /// Returns the totals at `time`, which is between this sample and the later sample `after`.
    fn between(self, after: Self, time: Duration) -> Self {
        let part = time.saturating_sub(self.at).as_nanos();
        let whole = after.at.saturating_sub(self.at).as_nanos();
        let share = |from: u64, to: u64| {
            let bytes = u128::from(to - from).saturating_mul(part) / whole;
            from + u64::try_from(bytes).map_or(to - from, |bytes| bytes.min(to - from))
        };
        Self {
            at: time,
            received: share(self.received, after.received),
            sent: share(self.sent, after.sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns true if two rates differ by less than the rounding of a sample to whole bytes can cause.
    fn is_near(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= expected.abs() * 1e-6 + 1.0
    }

    #[test]
    fn each_window_has_its_own_rate() {
        let mut rates = RateSampler::default();
        // 5 minutes with 100 B/s in, then a minute with 700, of which the last 10 s stand still.
        let mut total = 0;
        for second in 0..=360 {
            rates.add_sample(seconds(second), total, 0);
            total += match second {
                0..300 => 100,
                300..350 => 700,
                _ => 0,
            };
        }
        let found = rates.rates();
        let expected = [
            0.0,
            50.0 * 700.0 / 60.0,
            (240.0 * 100.0 + 50.0 * 700.0) / 300.0,
        ];
        for (found, expected) in found.received.into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        assert_eq!(format!("{:?}", found.sent), "[0.0, 0.0, 0.0]");
    }

    #[test]
    fn a_young_server_counts_from_its_begin() {
        let mut rates = RateSampler::default();
        assert_eq!(rates.rates(), RatesNow::default());
        assert_eq!(rates.add_sample(seconds(7), 0, 0), RatesNow::default());
        let found = rates.add_sample(seconds(9), 1000, 500);
        assert_eq!(
            format!("{found:?}"),
            "RatesNow { received: [500.0, 500.0, 500.0], sent: [250.0, 250.0, 250.0] }"
        );
        let found = rates.add_sample(seconds(27), 1000, 500);
        assert_eq!(format!("{:?}", found.received), "[0.0, 50.0, 50.0]");
    }

    #[test]
    fn a_gap_between_samples_counts_as_even() {
        let mut rates = RateSampler::default();
        rates.add_sample(seconds(0), 0, 0);
        rates.add_sample(seconds(5), 0, 0);
        let found = rates.add_sample(seconds(25), 2000, 0);
        assert_eq!(format!("{:?}", found.received), "[100.0, 80.0, 80.0]");
    }

    #[test]
    fn clocks_and_totals_that_go_back_are_harmless() {
        let mut rates = RateSampler::default();
        rates.add_sample(seconds(10), 1000, 0);
        rates.add_sample(seconds(11), 2000, 0);
        let before = rates.rates();
        assert_eq!(rates.add_sample(seconds(5), 9000, 9000), before);
        let found = rates.add_sample(seconds(12), 1500, 0);
        assert_eq!(format!("{:?}", found.received), "[500.0, 500.0, 500.0]");
    }

    proptest! {
        #[test]
        fn an_even_flow_has_one_rate(
            flow in 0_u64..1 << 40,
            gaps in prop::collection::vec(1_u64..20_000, 1..400),
        ) {
            let mut rates = RateSampler::default();
            let mut at = Duration::from_millis(gaps[0]);
            rates.add_sample(at, 0, 0);
            let begin = at;
            for gap in gaps {
                at += Duration::from_millis(gap);
                let millis = u64::try_from(at.abs_diff(begin).as_millis()).unwrap();
                let total = u64::try_from(u128::from(flow) * u128::from(millis) / 1000).unwrap();
                let found = rates.add_sample(at, total, 0);
                // A window of less than a second rounds to whole bytes of that second.
                if millis >= 1000 {
                    let expected = rate(flow, 1.0);
                    prop_assert!(found.received.iter().all(|found| is_near(*found, expected)), "{:?} {}", found, expected);
                }
                prop_assert!(found.sent.iter().all(|sent| *sent < 1e-9));
            }
        }

        #[test]
        fn memory_is_bounded_and_rates_are_finite(
            samples in prop::collection::vec((0_u64..3_000, any::<u64>(), any::<u64>()), 1..2000),
        ) {
            let mut rates = RateSampler::default();
            let mut at = Duration::ZERO;
            for (gap, received, sent) in samples {
                at += Duration::from_millis(gap);
                let found = rates.add_sample(at, received, sent);
                prop_assert!(rates.samples.len() <= 302, "{}", rates.samples.len());
                prop_assert!(found.received.iter().chain(&found.sent).all(|rate| rate.is_finite() && *rate >= 0.0));
            }
        }

        /// The bytes of a window are those of the samples in it, and parts of the two at its ends.
        #[test]
        fn a_window_has_the_bytes_of_its_samples(
            steps in prop::collection::vec((1_u64..9, 0_u64..1 << 30), 2..300),
        ) {
            let mut rates = RateSampler::default();
            let (mut at, mut total) = (0, 0);
            let mut history = vec![(0, 0)];
            rates.add_sample(seconds(0), 0, 0);
            for (gap, bytes) in steps {
                (at, total) = (at + gap, total + bytes);
                history.push((at, total));
                let found = rates.add_sample(seconds(at), 0, total);
                for (window, found) in RATE_WINDOWS.into_iter().zip(found.sent) {
                    let from = at.saturating_sub(window.as_secs());
                    let earlier = history.iter().rfind(|(at, _)| *at <= from).unwrap().1;
                    let later = history.iter().find(|(at, _)| *at >= from).unwrap().1;
                    let rate = |begin: u64| rate(total - begin, seconds(at - from).as_secs_f64());
                    let (least, most) = (rate(later) - 1.0, rate(earlier) + 1.0);
                    prop_assert!(least <= found && found <= most, "{} {} {}", least, found, most);
                }
            }
        }
    }
}
