//! The charts of a report.

use super::chart::{
    AxisUnit, Bar, BarChart, Chart, Curve, CurveChart, CurvePoint, PERCENTILES, Picture,
};
use crate::perf::report::{
    PerfDocument, SizeText,
    measurand::{FigureName, Measurand, Medium, SMALL_OPERATION},
    series::{Series, SweepCurve, curves, micros},
};

/// The percentiles of a chart over sizes.
const SHOWN: [f64; 2] = [50.0, 99.0];

/// Returns the picture of a report of one pair of hosts. It has no chart if nothing was measured.
pub(crate) fn picture(document: &PerfDocument) -> Picture {
    let series = &document.series;
    let charts = [
        sweep_times(series),
        sweep_rates(series),
        bandwidths(series),
        times(series, Medium::Tcp),
        times(series, Medium::Rdma),
        connects(series),
    ];
    let ends = series
        .iter()
        .find_map(|series| Some((&series.from, series.to.as_ref()?)));
    let title = match ends {
        Some((from, to)) => format!("rdperf: {from} to {to}"),
        None => "rdperf".to_owned(),
    };
    let choices = document.choices.iter();
    let choices = choices.map(|choice| format!("{}: {}", choice.transport, choice.reason));
    let hosts = document.hosts.iter().map(|host| {
        format!(
            "{}: {} × {}, Linux {}, rdpipe {}",
            host.name, host.processors, host.processor, host.kernel, host.version
        )
    });
    Picture {
        title,
        subtitles: choices.chain(hosts).collect(),
        charts: charts.into_iter().flatten().collect(),
    }
}

/// Returns the chart of the times of a sweep: the median and the 99th percentile of each curve.
fn sweep_times(series: &[Series]) -> Option<Chart> {
    let found = curves(series, FigureName::Time);
    let mut chart = CurveChart {
        title: "Time there and back".to_owned(),
        x: AxisUnit::Bytes,
        y: AxisUnit::Micros,
        curves: Vec::new(),
    };
    for (style, curve) in found.iter().enumerate() {
        chart
            .curves
            .extend(of_sizes(&curve.name, style, &curve.points));
    }
    (!chart.curves.is_empty()).then_some(Chart::Curves(chart))
}

/// Returns the curves of the median and of the 99th percentile over sizes.
fn of_sizes(name: &str, style: usize, points: &[(u32, &Series)]) -> Vec<Curve> {
    let of = |percentile: f64| {
        let point = |(size, series): &(u32, &Series)| {
            Some(CurvePoint {
                x: f64::from(*size),
                y: micros(series.histogram()?.percentile(percentile)),
                range: None,
            })
        };
        Curve {
            name: format!("{name}, p{percentile}"),
            style,
            is_minor: percentile > SHOWN[0],
            points: points.iter().filter_map(point).collect(),
        }
    };
    let curves = SHOWN.into_iter().map(of);
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

/// Returns the chart of the rates of a sweep: operations per second if all sizes are small.
fn sweep_rates(series: &[Series]) -> Option<Chart> {
    let found = curves(series, FigureName::Rate);
    let largest = found.iter().filter_map(|curve| curve.points.last());
    let largest = largest.map(|point| point.0).max()?;
    let unit = if largest < SMALL_OPERATION {
        AxisUnit::OperationsPerSecond
    } else {
        AxisUnit::BytesPerSecond
    };
    let curves = found.iter().enumerate();
    let curves = curves.map(|(style, curve)| rate_curve(curve, style, unit));
    Some(Chart::Curves(CurveChart {
        title: "Throughput".to_owned(),
        x: AxisUnit::Bytes,
        y: unit,
        curves: curves.collect(),
    }))
}

fn rate_curve(curve: &SweepCurve<'_>, style: usize, unit: AxisUnit) -> Curve {
    let point = |(size, series): &(u32, &Series)| {
        let divisor = match unit {
            AxisUnit::OperationsPerSecond => f64::from(*size),
            _ => 1.0,
        };
        let (low, high) = range(series);
        Some(CurvePoint {
            x: f64::from(*size),
            y: series.median()? / divisor,
            range: Some((low / divisor, high / divisor)),
        })
    };
    Curve {
        name: curve.name.clone(),
        style,
        is_minor: false,
        points: curve.points.iter().filter_map(point).collect(),
    }
}

/// Returns the least and the greatest value of all runs.
fn range(series: &Series) -> (f64, f64) {
    let values = || series.runs.iter().map(|run| run.value);
    (
        values().fold(f64::MAX, f64::min),
        values().fold(0.0, f64::max),
    )
}

/// Returns the chart of the bytes per second of streams, sockets, verbs and files.
fn bandwidths(series: &[Series]) -> Option<Chart> {
    let is_of = |series: &&Series| {
        series.what.is_rate() && !matches!(series.what, Measurand::Operations(_))
    };
    let bar = |series: &Series| {
        Some(Bar {
            name: name(series),
            value: series.median()?,
            range: range(series),
        })
    };
    let bars: Vec<_> = series.iter().filter(is_of).filter_map(bar).collect();
    (!bars.is_empty()).then(|| {
        Chart::Bars(BarChart {
            title: "Throughput".to_owned(),
            unit: AxisUnit::BytesPerSecond,
            bars,
        })
    })
}

fn name(series: &Series) -> String {
    match series.what.medium() {
        Some(medium) => format!("{medium} {}", series.what),
        None => format!("{}: {}", series.from, series.what),
    }
}

/// Messages of one kind, of all sizes.
struct MessageKind<'a> {
    name: String,
    points: Vec<(u32, &'a Series)>,
}

/// Returns the chart of times of messages over a transport: over their sizes, or of their percentiles if all have one
/// size. Both transports in one chart would be more curves than an eye can follow.
fn times(series: &[Series], medium: Medium) -> Option<Chart> {
    let mut kinds: Vec<MessageKind<'_>> = Vec::new();
    for one in series {
        let Measurand::Latency {
            size, transport, ..
        } = one.what
        else {
            continue;
        };
        if transport != medium || one.histogram().is_none() {
            continue;
        }
        let size_text = format!("{}, ", SizeText(size));
        let name = one.what.to_string().replacen(&size_text, "", 1);
        match kinds.iter_mut().find(|kind| kind.name == name) {
            Some(kind) => kind.points.push((size, one)),
            None => kinds.push(MessageKind {
                name,
                points: vec![(size, one)],
            }),
        }
    }
    let has_sizes = kinds.iter().any(|kind| kind.points.len() > 1);
    let curves: Vec<_> = kinds
        .iter_mut()
        .enumerate()
        .flat_map(|(style, kind)| {
            kind.points.sort_by_key(|point| point.0);
            if has_sizes {
                of_sizes(&kind.name, style, &kind.points)
            } else {
                percentiles(kind, style).into_iter().collect()
            }
        })
        .collect();
    let title = match kinds.first()?.points[..] {
        [(size, _)] if !has_sizes => format!("{medium}: time of {} there and back", SizeText(size)),
        _ => format!("{medium}: time there and back"),
    };
    Some(Chart::Curves(CurveChart {
        title,
        x: if has_sizes {
            AxisUnit::Bytes
        } else {
            AxisUnit::Percentile
        },
        y: AxisUnit::Micros,
        curves,
    }))
}

/// Returns the chart of the times to connect.
fn connects(series: &[Series]) -> Option<Chart> {
    let is_of = |series: &&Series| matches!(series.what, Measurand::Connect { .. });
    let kind = |(style, series): (usize, &'_ Series)| {
        let kind = MessageKind {
            name: name(series),
            points: vec![(0, series)],
        };
        percentiles(&kind, style)
    };
    let curves = series.iter().filter(is_of).enumerate();
    let curves: Vec<_> = curves.filter_map(kind).collect();
    (!curves.is_empty()).then(|| {
        Chart::Curves(CurveChart {
            title: "Time to connect".to_owned(),
            x: AxisUnit::Percentile,
            y: AxisUnit::Micros,
            curves,
        })
    })
}

/// Returns the percentiles of the times of one kind of messages.
fn percentiles(kind: &MessageKind<'_>, style: usize) -> Option<Curve> {
    let histogram = kind.points.first()?.1.histogram()?;
    let point = |(x, percentile)| CurvePoint {
        x,
        y: micros(histogram.percentile(percentile)),
        range: None,
    };
    Some(Curve {
        name: kind.name.clone(),
        style,
        is_minor: false,
        points: PERCENTILES.into_iter().map(point).collect(),
    })
}
