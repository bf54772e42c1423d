//! The runs of one measurement: their median and their spread.

use serde::{Deserialize, Serialize};

use super::{
    measurand::{Measurand, Medium},
    operations::{Differences, FigureName, Operations},
    sample::{Sample, ratio, sum},
};
use crate::perf::{histogram::LatencyHistogram, messages::NetworkCounters};

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

/// One curve of a sweep.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        super::{
            operations::{InlineName, tests::send_of_64},
            sample::Sample,
        },
        *,
    };

    /// A point of a sweep with these values.
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
}
