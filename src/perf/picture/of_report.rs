//! The charts of a report.

use super::{AxisUnit, Bar, BarChart, Chart, Curve, CurveChart, CurvePoint, PERCENTILES, Picture};
use crate::{
    Transport,
    perf::report::{
        PerfDocument, SizeText,
        measurand::{FigureName, Measurand, SMALL_OPERATION},
        series::{Series, SweepCurve, curves, micros},
    },
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
        times(series, Transport::Tcp),
        times(series, Transport::Rdma),
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
    match series.what.transport() {
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
fn times(series: &[Series], medium: Transport) -> Option<Chart> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{super::svg, *};
    use crate::perf::{
        histogram::LatencyHistogram,
        messages::{Traffic, WaitMode},
        report::{
            PerfDocument,
            measurand::{
                Carrier, FigureName, InlineName, Measurand, Operations, tests::send_of_64,
            },
            series::{Sample, Series, tests::point},
        },
    };

    /// A report with these series between hosts with these names.
    fn document(from: &str, series: Vec<Series>) -> PerfDocument {
        let mut document = PerfDocument {
            series,
            ..PerfDocument::default()
        };
        for series in &mut document.series {
            from.clone_into(&mut series.from);
        }
        document
    }

    /// A time there and back of this many microseconds.
    fn timed(what: Operations, micros: u64) -> Series {
        let mut series = point(what, &[1.0]);
        let mut histogram = LatencyHistogram::default();
        for factor in [1, 1, 1, 9] {
            histogram.record(Duration::from_micros(micros * factor));
        }
        series.runs[0].histogram = Some(histogram);
        series
    }

    /// A sweep with inline bytes and without.
    fn inline_sweep() -> Vec<Series> {
        let mut series = Vec::new();
        for inline in [InlineName::Never, InlineName::Always] {
            for at in 1..10 {
                let of = |figure| Operations {
                    figure,
                    inline,
                    size: 1 << at,
                    ..send_of_64()
                };
                let gain = u64::from(inline == InlineName::Always) * 3;
                series.push(timed(of(FigureName::Time), 20 + at - gain));
                let rate = f64::from(1 << at) * 3e5;
                series.push(point(of(FigureName::Rate), &[rate, rate * 1.1, rate * 0.8]));
            }
        }
        series
    }

    /// An ordinary run: bandwidth and latency.
    fn ordinary_run() -> Vec<Series> {
        let mut series = Vec::new();
        for (transport, rate) in [(Transport::Tcp, 2.5e9), (Transport::Rdma, 11e9)] {
            for traffic in [Traffic::Forward, Traffic::Backward] {
                let what = Measurand::Bandwidth {
                    carrier: Carrier::Stream,
                    transport,
                    traffic,
                    streams: 1,
                    rails: None,
                    size: None,
                };
                series.push(Series {
                    what,
                    ..point(send_of_64(), &[rate, rate * 0.9, rate * 1.05])
                });
            }
            let what = Measurand::Latency {
                carrier: Carrier::Stream,
                transport,
                wait: WaitMode::Adaptive,
                size: 64,
            };
            series.push(Series {
                what,
                ..timed(send_of_64(), 30)
            });
        }
        series
    }

    /// Draws a report, and checks what every picture must be. Returns its texts.
    fn drawn(document: &PerfDocument) -> Vec<String> {
        let text = svg(&picture(document));
        let tree = roxmltree::Document::parse(&text).expect("it is XML");
        let root = tree.root_element();
        let size = |name| root.attribute(name).unwrap().parse::<f64>().unwrap();
        let (width, height) = (size("width"), size("height"));
        let mut boxes: Vec<(f64, f64, f64, String)> = Vec::new();
        for node in tree.descendants() {
            for (name, most) in [
                ("x", width),
                ("x1", width),
                ("x2", width),
                ("cx", width),
                ("y", height),
                ("y1", height),
                ("y2", height),
                ("cy", height),
            ] {
                if let Some(value) = node.attribute(name) {
                    let value: f64 = value.parse().unwrap();
                    assert!(
                        (0.0..=most).contains(&value),
                        "{name}={value} of {most}: {text}"
                    );
                }
            }
            if node.has_tag_name("text") {
                let number = |name| node.attribute(name).unwrap().parse::<f64>().unwrap();
                let words = node.text().unwrap_or_default().to_owned();
                // Names at the ends of curves begin at the same place; so do title and subtitles, with larger
                // distances.
                if node.attribute("text-anchor") == Some("start") {
                    boxes.push((number("x"), number("y"), 12.0, words));
                }
            }
        }
        for (at, one) in boxes.iter().enumerate() {
            for other in &boxes[at + 1..] {
                let is_apart = (one.1 - other.1).abs() >= one.2 || (one.0 - other.0).abs() > 1.0;
                assert!(is_apart, "{one:?} and {other:?} overlap");
            }
        }
        let texts = tree.descendants().filter(|node| node.has_tag_name("text"));
        texts
            .filter_map(|node| node.text().map(str::to_owned))
            .collect()
    }

    #[test]
    fn a_sweep_shows_its_curves_with_their_names_and_units() {
        let texts = drawn(&document("h1", inline_sweep()));
        for words in [
            "rdperf: h1 to h2",
            "Time there and back, µs",
            "Throughput, thousand operations/s",
            "size",
            "64 B",
            "inline, p50",
            "inline, p99",
            "not inline, p50",
            "inline",
            "not inline",
        ] {
            assert!(texts.iter().any(|text| text == words), "{words}: {texts:?}");
        }
    }

    #[test]
    fn an_ordinary_run_shows_bars_and_percentiles() {
        let texts = drawn(&document("h1", ordinary_run()));
        for words in [
            "Throughput, GB/s",
            "RDMA stream, one way",
            "11",
            "TCP: time of 64 B there and back, µs",
            "stream",
            "p99.9",
            "percentile of all times",
        ] {
            assert!(texts.iter().any(|text| text == words), "{words}: {texts:?}");
        }
    }

    #[test]
    fn several_sizes_are_an_axis() {
        let mut series = ordinary_run();
        for one in ordinary_run() {
            if let Measurand::Latency {
                carrier,
                transport,
                wait,
                ..
            } = one.what
            {
                let what = Measurand::Latency {
                    carrier,
                    transport,
                    wait,
                    size: 4096,
                };
                series.push(Series { what, ..one });
            }
        }
        let texts = drawn(&document("h1", series));
        for words in ["RDMA: time there and back, µs", "4 KiB", "stream, p99"] {
            assert!(texts.iter().any(|text| text == words), "{words}: {texts:?}");
        }
    }

    #[test]
    fn many_curves_have_room_for_their_names() {
        let curves = (1..=20).flat_map(|signal| {
            let of = move |size| Operations {
                signal,
                size,
                ..send_of_64()
            };
            [timed(of(2), 20), timed(of(64), 20 + u64::from(signal))]
        });
        let texts = drawn(&document("h1", curves.collect()));
        assert!(texts.iter().any(|text| text == "1 in 20 signalled, p99"));
    }

    #[test]
    fn the_time_to_connect_is_drawn() {
        let what = Measurand::Connect {
            transport: Transport::Tcp,
        };
        let connect = Series {
            what,
            ..timed(send_of_64(), 500)
        };
        let texts = drawn(&document("h1", vec![connect]));
        assert!(texts.iter().any(|text| text == "TCP connect"), "{texts:?}");
    }

    #[test]
    fn names_are_escaped() {
        let texts = drawn(&document("<h&\"1\u{1}>", inline_sweep()));
        assert_eq!(texts[0], "rdperf: <h&\"1 > to h2");
    }

    #[test]
    fn nothing_is_an_empty_picture() {
        assert!(picture(&PerfDocument::default()).charts.is_empty());
        assert_eq!(drawn(&PerfDocument::default()), ["rdperf"]);
    }

    proptest! {
        #[test]
        fn any_values_are_drawn(values in prop::collection::vec((0_u32..31, prop_oneof![Just(0.0), 1e-3..1e12_f64], 0_u64..10_000_000, any::<bool>()), 0..40)) {
            let series = values.iter().map(|&(exponent, value, micros, is_time)| {
                let figure = if is_time { FigureName::Time } else { FigureName::Rate };
                let what = Operations { figure, size: 1 << exponent, signal: exponent % 9 + 1, ..send_of_64() };
                if is_time {
                    timed(what, micros)
                } else {
                    point(what, &[value, value / 2.0])
                }
            });
            let mut document = document("h1", series.collect());
            document.series.push(Series { runs: vec![Sample::default()], ..ordinary_run().remove(0) });
            drawn(&document);
        }
    }
}
