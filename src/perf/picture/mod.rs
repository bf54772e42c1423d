//! Pictures of a report: which charts a report has, the scales of their axes, and how they are drawn as SVG. Pure, no
//! I/O.
//!
//! No chart library draws them as clearly: `docs/measurements.md` has what was tried.

mod drawing;
mod of_report;
mod scale;

pub(crate) use self::{drawing::svg, of_report::picture};

/// A picture: charts below each other.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Picture {
    /// What was measured, and between which hosts.
    pub(crate) title: String,
    /// What has to be known to read the figures: devices and processors.
    pub(crate) subtitles: Vec<String>,
    pub(crate) charts: Vec<Chart>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Chart {
    Curves(CurveChart),
    Bars(BarChart),
}

/// A value over the size of an operation, for each of several settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CurveChart {
    pub(crate) title: String,
    pub(crate) x: AxisUnit,
    pub(crate) y: AxisUnit,
    pub(crate) curves: Vec<Curve>,
}

/// One curve of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Curves with the same number have the same colour and marker.
    pub(crate) style: usize,
    /// True for a curve that accompanies another one: a high percentile beside the median.
    pub(crate) is_minor: bool,
    pub(crate) points: Vec<CurvePoint>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CurvePoint {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The least and the greatest value of all runs.
    pub(crate) range: Option<(f64, f64)>,
}

/// One value for each of several measurements.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BarChart {
    pub(crate) title: String,
    pub(crate) unit: AxisUnit,
    pub(crate) bars: Vec<Bar>,
}

/// One bar of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// The least and the greatest value of all runs.
    pub(crate) range: (f64, f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AxisUnit {
    /// A size in bytes, on a scale of powers of 2.
    Bytes,
    /// A time in microseconds.
    Micros,
    BytesPerSecond,
    OperationsPerSecond,
    /// A percentile: the places are those of [`PERCENTILES`].
    Percentile,
}

/// The places on the axis of a chart of percentiles, and the percentiles there. The last one is the maximum.
pub(crate) const PERCENTILES: [(f64, f64); 5] = [
    (0.0, 50.0),
    (1.0, 90.0),
    (2.0, 99.0),
    (3.0, 99.9),
    (4.0, 100.0),
];
