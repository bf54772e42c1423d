//! How often each latency occurred.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest time that is told apart from longer ones, in nanoseconds: a minute.
const MAX_NANOS: u64 = 60_000_000_000;

/// The digits of a time that are kept: it is known within a percent. Three digits would make a message of a histogram
/// larger than the protocol allows.
const DIGITS: u8 = 2;

/// How often each latency occurred, in nanoseconds. It travels and is stored as pairs of a time and a count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(crate) struct LatencyHistogram(Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_NANOS, DIGITS);
        Self(histogram.expect("the bounds are valid"))
    }
}

impl LatencyHistogram {
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(MAX_NANOS);
        self.0.saturating_record(nanos.max(1));
    }

    /// Adds the counts of another histogram.
    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time in nanoseconds that the part `percentile` of 100 does not exceed; 0 if nothing was counted.
    pub(crate) fn percentile(&self, percentile: f64) -> u64 {
        self.0.value_at_percentile(percentile)
    }

    /// Returns the longest time in nanoseconds.
    pub(crate) fn max(&self) -> u64 {
        self.0.max()
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.mean()
    }
}

impl From<LatencyHistogram> for Vec<(u64, u64)> {
    fn from(LatencyHistogram(histogram): LatencyHistogram) -> Self {
        let counts = histogram.iter_recorded();
        counts
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }
}

impl From<Vec<(u64, u64)>> for LatencyHistogram {
    fn from(counts: Vec<(u64, u64)>) -> Self {
        let mut histogram = Self::default();
        for (nanos, count) in counts {
            histogram.0.saturating_record_n(nanos.max(1), count);
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ssh::protocol::Payload;

    fn of(nanos: &[u64]) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::default();
        for &nanos in nanos {
            histogram.record(Duration::from_nanos(nanos));
        }
        histogram
    }

    #[test]
    fn percentiles_are_known_within_a_percent() {
        let histogram = of(&(1..=1000).map(|n| n * 1000).collect::<Vec<_>>());
        for (percentile, nanos) in [(50.0, 500_000.0), (99.0, 990_000.0), (99.9, 999_000.0)] {
            #[allow(clippy::cast_precision_loss, reason = "small numbers")]
            let found = histogram.percentile(percentile) as f64;
            assert!((found / nanos - 1.0).abs() < 0.01, "{percentile}: {found}");
        }
        assert_eq!(histogram.count(), 1000);
        assert!((histogram.mean() / 500_500.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn nothing_and_too_much_can_be_counted() {
        assert_eq!(of(&[]).percentile(50.0), 0);
        assert!(of(&[0, u64::MAX]).max() >= MAX_NANOS);
    }

    #[test]
    fn the_largest_histogram_fits_into_a_message() {
        let mut histogram = LatencyHistogram::default();
        let mut nanos = 1_u64;
        while nanos < MAX_NANOS {
            histogram.0.saturating_record_n(nanos, u64::from(u32::MAX));
            nanos += 1 + nanos / 256;
        }
        Payload::encode(&histogram).unwrap();
    }

    proptest! {
        #[test]
        fn a_histogram_survives_the_wire(times in prop::collection::vec(0..2 * MAX_NANOS, 0..200)) {
            let histogram = of(&times);
            let bytes = postcard::to_stdvec(&histogram).unwrap();
            let read: LatencyHistogram = postcard::from_bytes(&bytes).unwrap();
            prop_assert_eq!(read.count(), histogram.count());
            for percentile in [0.0, 50.0, 99.0, 100.0] {
                prop_assert_eq!(read.percentile(percentile), histogram.percentile(percentile));
            }
        }
    }
}
