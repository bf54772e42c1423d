//! The runs of one measurement: their median and their spread.

use serde::{Deserialize, Serialize};

use super::{
    measurand::{Measurand, Medium},
    sample::{Sample, ratio, sum},
};
use crate::perf::{histogram::LatencyHistogram, median::median, messages::NetworkCounters};

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

    /// Returns the distance from the median to the farthest run, as a part of the median. Two runs of the same thing can
    /// differ by so much.
    pub(crate) fn spread(&self) -> f64 {
        let Some(median) = self.median().filter(|median| *median > 0.0) else {
            return 0.0;
        };
        let distances = self.runs.iter().map(|run| (run.value - median).abs());
        distances.fold(0.0, f64::max) / median
    }

    /// Returns what the kernels have counted in all runs.
    pub(crate) fn counters(&self) -> NetworkCounters {
        let runs = self.runs.iter().filter_map(|run| run.counters);
        runs.fold(NetworkCounters::default(), sum)
    }

    /// Returns the part of the packets of its transport that were lost; none if the kernels have counted none.
    pub(crate) fn lost(&self) -> Option<f64> {
        let counters = self.counters();
        let (lost, sent) = match self.what.medium()? {
            Medium::Tcp => (counters.tcp_retransmitted, counters.tcp_segments),
            Medium::Rdma => (counters.rdma_losses, counters.rdma_packets),
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
