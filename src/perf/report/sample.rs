//! What one run of a measurement has shown.

use serde::{Deserialize, Serialize};

use crate::perf::{
    histogram::LatencyHistogram,
    messages::{BandwidthResult, LatencyResult, NetworkCounters, TaskResult},
};

/// What one run of a measurement has shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Bytes per second, or the median of the times in microseconds.
    pub(crate) value: f64,
    /// Bytes moved, of a measurement of bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Messages there and back per second, or connections per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trips_per_second: Option<f64>,
    /// The mean time in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) average_us: Option<f64>,
    /// The processor time of the end that dials: seconds per gigabyte, or per second for messages.
    pub(crate) cpu_dialer: f64,
    /// The processor time of the end that listens, in the same unit.
    pub(crate) cpu_listener: f64,
    /// How often each time occurred, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) histogram: Option<LatencyHistogram>,
    /// What both ends' kernels have counted: of a measurement of bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) counters: Option<NetworkCounters>,
    /// The address of the other end, as the end that dials has used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// What carried the streams, for the user: the RDMA port, for example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
}

impl Sample {
    /// Returns what two ends have shown together.
    ///
    /// # Errors
    ///
    /// One sentence for the user, if the results do not belong together: bytes were lost, for example.
    pub(crate) fn of(dialer: &TaskResult, listener: &TaskResult) -> Result<Self, String> {
        match (dialer, listener) {
            (TaskResult::Bandwidth(dialer), TaskResult::Bandwidth(listener)) => {
                bandwidth(dialer, listener)
            }
            (TaskResult::Latency(dialer), TaskResult::Latency(listener)) => {
                Ok(latency(dialer, Some(listener)))
            }
            // With verbs, an end whose memory is written and read has nothing to count.
            (TaskResult::Bandwidth(dialer), TaskResult::Served) => Ok(one_sided(dialer)),
            (TaskResult::Latency(dialer), TaskResult::Served) => Ok(latency(dialer, None)),
            _ => Err("the two hosts have sent results of different kinds".to_owned()),
        }
    }

    /// Returns what a host alone has shown.
    ///
    /// # Errors
    ///
    /// One sentence for the user, if the result is of another kind.
    pub(crate) fn of_storage(result: &TaskResult) -> Result<Self, String> {
        let TaskResult::Bandwidth(result) = result else {
            return Err("the host has sent a result of another kind".to_owned());
        };
        Ok(one_sided(result))
    }
}

fn bandwidth(dialer: &BandwidthResult, listener: &BandwidthResult) -> Result<Sample, String> {
    let (forward, backward) = (dialer.bytes_sent, listener.bytes_sent);
    // What arrives by SEND after the time of the end that dials is not counted there.
    let is_verbs = dialer.operations > 0;
    if !is_verbs && (forward, backward) != (listener.bytes_received, dialer.bytes_received) {
        return Err("one host has received other bytes than the other one has sent".to_owned());
    }
    let bytes = forward + backward;
    Ok(Sample {
        value: rate(forward, dialer.nanos) + rate(backward, listener.nanos),
        bytes: Some(bytes),
        cpu_dialer: ratio(dialer.cpu_nanos, bytes),
        cpu_listener: ratio(listener.cpu_nanos, bytes),
        counters: Some(sum(dialer.counters, listener.counters)),
        address: dialer.transport.as_ref().map(|used| used.address.clone()),
        link: dialer.transport.as_ref().map(|used| used.reason.clone()),
        ..Sample::default()
    })
}

/// Returns what one end has shown alone. Nanoseconds of processor time per byte are seconds per gigabyte.
fn one_sided(end: &BandwidthResult) -> Sample {
    let bytes = end.bytes_sent + end.bytes_received;
    Sample {
        value: rate(bytes, end.nanos),
        bytes: Some(bytes),
        cpu_dialer: ratio(end.cpu_nanos, bytes),
        ..Sample::default()
    }
}

fn latency(dialer: &LatencyResult, listener: Option<&LatencyResult>) -> Sample {
    let histogram = &dialer.histogram;
    let share = |end: &LatencyResult| ratio(end.cpu_nanos, end.nanos);
    Sample {
        value: micros(histogram.percentile(50.0)),
        trips_per_second: Some(rate(histogram.count(), dialer.nanos)),
        average_us: Some(histogram.mean() / 1000.0),
        cpu_dialer: share(dialer),
        cpu_listener: listener.map_or(0.0, share),
        histogram: Some(histogram.clone()),
        address: dialer.transport.as_ref().map(|used| used.address.clone()),
        link: dialer.transport.as_ref().map(|used| used.reason.clone()),
        ..Sample::default()
    }
}

/// Returns a number for each second.
fn rate(count: u64, nanos: u64) -> f64 {
    ratio(count, nanos) * 1e9
}

/// Returns a time in microseconds.
pub(crate) fn micros(nanos: u64) -> f64 {
    ratio(nanos, 1000)
}

/// Returns a part of a whole; 0 of nothing.
#[allow(clippy::cast_precision_loss, reason = "a report shows a few digits")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Returns the counts of both ends together.
pub(crate) fn sum(one: NetworkCounters, other: NetworkCounters) -> NetworkCounters {
    NetworkCounters {
        tcp_segments: one.tcp_segments + other.tcp_segments,
        tcp_retransmitted: one.tcp_retransmitted + other.tcp_retransmitted,
        rdma_packets: one.rdma_packets + other.rdma_packets,
        rdma_losses: one.rdma_losses + other.rdma_losses,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bytes(sent: u64, received: u64, nanos: u64) -> BandwidthResult {
        BandwidthResult {
            bytes_sent: sent,
            bytes_received: received,
            operations: 0,
            nanos,
            cpu_nanos: nanos / 2,
            counters: NetworkCounters::default(),
            transport: None,
        }
    }

    #[test]
    fn the_rate_is_that_of_the_ends_that_send() {
        let one_way = bandwidth(&bytes(4000, 0, 2000), &bytes(0, 4000, 1999)).unwrap();
        assert!((one_way.value - 2e9).abs() < 1.0);
        assert!((one_way.cpu_dialer - 0.25).abs() < 1e-9);
        let both = bandwidth(&bytes(4000, 2000, 2000), &bytes(2000, 4000, 2000)).unwrap();
        assert!((both.value - 3e9).abs() < 1.0);
        assert_eq!(both.bytes, Some(6000));
    }

    #[test]
    fn lost_bytes_are_not_a_result() {
        assert!(bandwidth(&bytes(4000, 0, 2000), &bytes(0, 3999, 1999)).is_err());
        let verbs = BandwidthResult {
            operations: 4,
            ..bytes(4000, 0, 2000)
        };
        assert!(bandwidth(&verbs, &bytes(0, 3000, 2000)).is_ok());
        assert!((one_sided(&bytes(0, 4000, 2000)).value - 2e9).abs() < 1.0);
    }

    #[test]
    fn times_are_in_microseconds() {
        let mut histogram = LatencyHistogram::default();
        histogram.record(Duration::from_micros(10));
        let end = LatencyResult {
            histogram,
            nanos: 20_000,
            cpu_nanos: 10_000,
            transport: None,
        };
        let sample = latency(&end, Some(&end));
        assert!((sample.value - 10.0).abs() < 0.1);
        assert!((sample.trips_per_second.unwrap() - 50_000.0).abs() < 1.0);
        assert!((sample.cpu_dialer - 0.5).abs() < 1e-9);
    }
}
