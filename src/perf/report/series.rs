//! The runs of one measurement: what each run has shown, their median and their spread.

use serde::{Deserialize, Serialize};

use super::measurand::{Differences, FigureName, Measurand, Operations};
use crate::{
    Cipher, Transport,
    perf::{
        histogram::LatencyHistogram,
        messages::{BandwidthResult, HostLoad, LatencyResult, NetworkCounters, TaskResult},
    },
};

/// The runs of one measurement of two hosts, or of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    /// The host that dials, or the only host.
    pub(crate) from: String,
    /// The host that listens; none for a measurement of one host.
    pub(crate) to: Option<String>,
    /// What is measured.
    pub(crate) what: Measurand,
    /// The runs that succeeded, in order.
    pub(crate) runs: Vec<Sample>,
}

impl Series {
    /// Returns the median of the runs: bytes per second, or microseconds. None without a run.
    pub(crate) fn median(&self) -> Option<f64> {
        median(self.runs.iter().map(|run| run.value))
    }

    /// Returns the median of another value of the runs.
    pub(crate) fn median_of(&self, value: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter_map(value))
    }

    /// Returns the distance from the median to the farthest run, as a part of the median. Two runs of the same thing
    /// can differ by so much.
    pub(crate) fn spread(&self) -> f64 {
        let Some(median) = self.median().filter(|median| *median > 0.0) else {
            return 0.0;
        };
        let distances = self.runs.iter().map(|run| (run.value - median).abs());
        distances.fold(0.0, f64::max) / median
    }

    /// Returns the cipher of the streams; none if they were not encrypted.
    pub(crate) fn cipher(&self) -> Option<Cipher> {
        self.runs.iter().find_map(|run| run.cipher)
    }

    /// Returns what the kernels have counted in all runs.
    pub(crate) fn counters(&self) -> NetworkCounters {
        let runs = self.runs.iter().filter_map(|run| run.counters);
        runs.fold(NetworkCounters::default(), sum)
    }

    /// Returns the part of the packets of its transport that were lost; none if the kernels have counted none.
    pub(crate) fn lost(&self) -> Option<f64> {
        let counters = self.counters();
        let (lost, sent) = match self.what.transport()? {
            Transport::Tcp => (counters.tcp_retransmitted, counters.tcp_segments),
            Transport::Rdma => (counters.rdma_losses, counters.rdma_packets),
        };
        (sent > 0).then(|| ratio(lost, sent))
    }

    /// Returns the times of all runs together; none for a measurement of bytes per second.
    pub(crate) fn histogram(&self) -> Option<LatencyHistogram> {
        let histograms = self.runs.iter().filter_map(|run| run.histogram.as_ref());
        let mut all: Option<LatencyHistogram> = None;
        for histogram in histograms {
            all.get_or_insert_default().add(histogram);
        }
        all
    }
}

#[derive(Debug, Clone)]
pub(crate) struct SweepCurve<'a> {
    /// What this curve has and others have not: "inline".
    pub(crate) name: String,
    /// The settings of all points. Their size is 0.
    pub(crate) settings: Operations,
    /// The size of the operations in bytes, and what was measured: the smallest size first. Each has at least one run.
    pub(crate) points: Vec<(u32, &'a Series)>,
}

impl SweepCurve<'_> {
    /// Returns what was measured for operations of this size.
    pub(crate) fn at(&self, size: u32) -> Option<&Series> {
        let found = self.points.iter().find(|point| point.0 == size);
        found.map(|point| point.1)
    }
}

/// Returns the curves of one figure, in the order in which they were measured.
pub(crate) fn curves(series: &[Series], figure: FigureName) -> Vec<SweepCurve<'_>> {
    let mut curves: Vec<SweepCurve<'_>> = Vec::new();
    for one in series {
        let Measurand::Operations(operations) = one.what else {
            continue;
        };
        if operations.figure != figure || one.runs.is_empty() {
            continue;
        }
        let settings = operations.of_curve();
        let point = (operations.size, one);
        match curves.iter_mut().find(|curve| curve.settings == settings) {
            Some(curve) => curve.points.push(point),
            None => curves.push(SweepCurve {
                name: String::new(),
                settings,
                points: vec![point],
            }),
        }
    }
    let all: Vec<_> = curves.iter().map(|curve| curve.settings).collect();
    let differences = Differences::between(&all);
    for curve in &mut curves {
        curve.name = curve.settings.curve_name(differences);
        curve.points.sort_by_key(|point| point.0);
    }
    curves
}

/// Returns the sizes of all points, each once, the smallest first.
pub(crate) fn sizes(curves: &[SweepCurve<'_>]) -> Vec<u32> {
    let points = curves.iter().flat_map(|curve| &curve.points);
    let mut sizes: Vec<_> = points.map(|point| point.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns the median; none of no values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

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
    /// What the processors of the end that dials did: of a measurement of bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) load_dialer: Option<ProcessorLoad>,
    /// What the processors of the end that listens did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) load_listener: Option<ProcessorLoad>,
    /// The address of the other end, as the end that dials has used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// What carried the streams, for the user: the RDMA port, for example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
    /// The cipher of the streams; none if they were not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cipher: Option<Cipher>,
}

impl Sample {
    /// Returns what two ends have shown together.
    /// Fails if the results do not belong together: bytes were lost, for example.
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
    /// Fails if the result is of another kind.
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
        load_dialer: ProcessorLoad::of(dialer, listener),
        load_listener: ProcessorLoad::of(listener, dialer),
        address: dialer.transport.as_ref().map(|used| used.address.clone()),
        link: dialer.transport.as_ref().map(|used| used.reason.clone()),
        cipher: dialer.transport.as_ref().and_then(|used| used.cipher),
        ..Sample::default()
    })
}

/// What the processors of a host did during a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessorLoad {
    pub(crate) processors: u32,
    /// The number of processors that were busy, in the mean.
    pub(crate) busy: f64,
    /// The number of processors that ran other programs, in the mean.
    pub(crate) others: f64,
}

impl ProcessorLoad {
    /// Returns the load of the host of `own`. `peer` is the other end, maybe on the same host.
    fn of(own: &BandwidthResult, peer: &BandwidthResult) -> Option<Self> {
        let HostLoad {
            kernel, processors, ..
        } = own.load;
        let of_end = |end: &BandwidthResult| ratio(end.cpu_nanos, end.nanos);
        let shared = if kernel == peer.load.kernel {
            of_end(peer)
        } else {
            0.0
        };
        let programs = ratio(own.load.programs_nanos, own.nanos);
        (processors > 0).then(|| Self {
            processors,
            busy: ratio(own.load.busy_nanos, own.nanos),
            others: (programs - of_end(own) - shared).max(0.0),
        })
    }
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
        cipher: dialer.transport.as_ref().and_then(|used| used.cipher),
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
pub(crate) mod tests {
    use std::time::Duration;

    use super::{Sample, *};
    use crate::perf::report::measurand::{InlineName, tests::send_of_64};

    pub(crate) fn point(what: Operations, values: &[f64]) -> Series {
        let sample = |&value| Sample {
            value,
            ..Sample::default()
        };
        Series {
            from: "h1".to_owned(),
            to: Some("h2".to_owned()),
            what: Measurand::Operations(what),
            runs: values.iter().map(sample).collect(),
        }
    }

    #[test]
    fn points_with_the_same_settings_are_one_curve() {
        let of = |inline, size| Operations {
            inline,
            size,
            ..send_of_64()
        };
        let series = [
            point(of(InlineName::Never, 64), &[3.0]),
            point(of(InlineName::Never, 2), &[2.0]),
            point(of(InlineName::Always, 2), &[1.0]),
            point(of(InlineName::Always, 4), &[]),
        ];
        let curves = curves(&series, FigureName::Time);
        let names: Vec<_> = curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["not inline", "inline"]);
        assert_eq!(sizes(&curves), [2, 64]);
        assert_eq!(curves[0].at(64).and_then(Series::median), Some(3.0));
        assert!(curves[1].at(4).is_none(), "a point without a run");
        assert!(super::curves(&series, FigureName::Rate).is_empty());
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
    }

    fn bytes(sent: u64, received: u64, nanos: u64) -> BandwidthResult {
        BandwidthResult {
            bytes_sent: sent,
            bytes_received: received,
            operations: 0,
            nanos,
            cpu_nanos: nanos / 2,
            counters: NetworkCounters::default(),
            load: HostLoad::default(),
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
    fn what_other_programs_do_is_what_the_ends_do_not() {
        let end = |kernel, cpu_nanos| BandwidthResult {
            cpu_nanos,
            load: HostLoad {
                kernel,
                processors: 4,
                busy_nanos: 3_500,
                programs_nanos: 3_000,
            },
            ..bytes(4000, 0, 1000)
        };
        let others = |own, peer| ProcessorLoad::of(&own, &peer).unwrap().others;
        assert!((others(end(1, 900), end(2, 800)) - 2.1).abs() < 1e-9);
        // The two ends are on one machine.
        assert!((others(end(1, 900), end(1, 800)) - 1.3).abs() < 1e-9);
        assert!(others(end(1, 3_500), end(2, 0)).abs() < 1e-9);
        assert_eq!(ProcessorLoad::of(&bytes(1, 0, 1), &end(1, 1)), None);
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
