//! The tables of a sweep, and what they show: which curve is the best one, and where that changes. Pure, no I/O.

use super::table::{TextTable, digits};
use crate::perf::{
    check::amounts::rate,
    report::{
        host_summary::SizeText,
        operations::{FigureName, SMALL_OPERATION},
        sample::micros,
        series::{Series, SweepCurve, curves, median, sizes},
    },
};

/// The part of the best rate from which a size is large enough.
const GOOD_ENOUGH: f64 = 0.9;

/// Sweeps that end below this size measure operations, and not the link.
const LARGE: u32 = 64 << 10;

/// Returns what a sweep shows, in sentences; none if it has no curve.
pub(super) fn sweep_verdict(series: &[Series]) -> Vec<String> {
    let mut lines = Vec::new();
    for figure in [FigureName::Time, FigureName::Rate] {
        let curves = curves(series, figure);
        match &curves[..] {
            [] => continue,
            [_] => {}
            [one, other] => lines.extend(crossing(one, other, figure)),
            _ => lines.extend(ranking(&curves, figure)),
        }
        if figure == FigureName::Rate {
            lines.extend(curves.iter().filter_map(enough));
        }
    }
    lines
}

/// How two curves compare at one size.
struct Comparison {
    size: u32,
    /// The logarithm of how many times the first curve is better.
    advantage: f64,
    /// How far runs of the same operations are apart.
    noise: f64,
}

/// Returns where the better one of two curves changes.
fn crossing(one: &SweepCurve<'_>, other: &SweepCurve<'_>, figure: FigureName) -> Option<String> {
    let shared = sizes(std::slice::from_ref(one)).into_iter();
    let compared: Vec<_> = shared
        .filter_map(|size| compare(size, one.at(size)?, other.at(size)?, figure))
        .collect();
    if compared.is_empty() {
        return None;
    }
    let what = what(figure);
    let (split, is_first) = split(&compared);
    let (below, above) = compared.split_at(split);
    let (before, after) = if is_first { (one, other) } else { (other, one) };
    let (gain_below, gain_above) = (gain(below), gain(above));
    let said = match (gain_below, gain_above) {
        (None, None) => nothing(&compared),
        (Some(gain), None) if above.is_empty() => faster(before, below, gain),
        (Some(gain), None) => format!("{}; {}", faster(before, below, gain), nothing(above)),
        (None, Some(gain)) => format!("{}; {}", nothing(below), faster(after, above, gain)),
        (Some(low), Some(high)) => format!(
            "{}; {}. The curves cross between {} and {}",
            faster(before, below, low),
            faster(after, above, high),
            SizeText(below[below.len() - 1].size),
            SizeText(above[0].size)
        ),
    };
    Some(format!("{what}: {said}."))
}

/// Returns that a curve is the better one for these sizes.
fn faster(curve: &SweepCurve<'_>, part: &[Comparison], gain: f64) -> String {
    let gain = if gain < 1.0 {
        format!("by {:.0}% in the median", gain * 100.0)
    } else {
        format!("{} times in the median", digits(1.0 + gain))
    };
    format!("{} is faster {}, {gain}", curve.name, range(part))
}

/// Returns that no curve is the better one for these sizes.
fn nothing(part: &[Comparison]) -> String {
    format!("there is no difference beyond noise {}", range(part))
}

fn range(part: &[Comparison]) -> String {
    let (first, last) = (part[0].size, part[part.len() - 1].size);
    if first == last {
        format!("at {}", SizeText(first))
    } else {
        format!("from {} to {}", SizeText(first), SizeText(last))
    }
}

fn compare(size: u32, one: &Series, other: &Series, figure: FigureName) -> Option<Comparison> {
    let factor = one.median()? / other.median()?;
    let advantage = match figure {
        FigureName::Time => -factor.ln(),
        FigureName::Rate => factor.ln(),
    };
    advantage.is_finite().then(|| Comparison {
        size,
        advantage,
        noise: noise(one) + noise(other),
    })
}

/// Returns the logarithm of the factor between the median and the run that is farthest from it.
fn noise(series: &Series) -> f64 {
    let Some(median) = series.median() else {
        return 0.0;
    };
    let factors = series
        .runs
        .iter()
        .map(|run| (run.value / median).ln().abs());
    factors.fold(0.0, f64::max)
}

/// Returns the position at which the better curve changes, and true if the first curve is the better one before it: the
/// position with the largest sum of advantages. A single size that is out of line does not change it.
fn split(compared: &[Comparison]) -> (usize, bool) {
    let sum = |part: &[Comparison]| part.iter().map(|one| one.advantage).sum::<f64>();
    let score = |at: usize| sum(&compared[..at]) - sum(&compared[at..]);
    // Without a change all sizes are in the first part.
    let positions = 1..=compared.len();
    let best = positions.max_by(|&one, &other| score(one).abs().total_cmp(&score(other).abs()));
    let best = best.unwrap_or(compared.len());
    (best, score(best) >= 0.0)
}

/// Returns the median advantage of the better curve over a part of the sizes; none if it is not beyond noise. The noise
/// of a median of several sizes is that of one size, divided by the root of their number.
fn gain(part: &[Comparison]) -> Option<f64> {
    let advantage = median(part.iter().map(|one| one.advantage))?.abs();
    #[allow(clippy::cast_precision_loss, reason = "a sweep has some ten sizes")]
    let sizes = part.len() as f64;
    let noise = median(part.iter().map(|one| one.noise))? / sizes.sqrt();
    (advantage > noise).then(|| advantage.exp() - 1.0)
}

/// Returns how the curves follow each other at the smallest and at the largest size that all of them have.
fn ranking(curves: &[SweepCurve<'_>], figure: FigureName) -> Option<String> {
    let all = sizes(curves).into_iter();
    let shared: Vec<_> = all
        .filter(|size| curves.iter().all(|curve| curve.at(*size).is_some()))
        .collect();
    let (first, last) = (*shared.first()?, *shared.last()?);
    let mut said = vec![ranked(curves, first, figure)];
    if last != first {
        said.push(ranked(curves, last, figure));
    }
    Some(format!("{}: {}.", what(figure), said.join("; ")))
}

/// Returns the values of all curves at one size, the best first.
fn ranked(curves: &[SweepCurve<'_>], size: u32, figure: FigureName) -> String {
    let value = |curve: &SweepCurve<'_>| curve.at(size).and_then(Series::median);
    let mut values: Vec<_> = curves
        .iter()
        .filter_map(|curve| Some((&curve.name, value(curve)?)))
        .collect();
    values.sort_by(|one, other| match figure {
        FigureName::Time => one.1.total_cmp(&other.1),
        FigureName::Rate => other.1.total_cmp(&one.1),
    });
    let text = |(name, value): &(&String, f64)| match figure {
        FigureName::Time => format!("{name} {} µs", digits(*value)),
        FigureName::Rate if size < SMALL_OPERATION => {
            format!("{name} {:.0} operations/s", value / f64::from(size))
        }
        FigureName::Rate => format!("{name} {}", rate(*value)),
    };
    let values: Vec<_> = values.iter().map(text).collect();
    format!("at {} {}", SizeText(size), values.join(", "))
}

/// Returns from which size on a curve is near its best rate.
fn enough(curve: &SweepCurve<'_>) -> Option<String> {
    let points = curve.points.iter();
    let points: Vec<_> = points
        .filter_map(|(size, series)| Some((*size, series.median()?)))
        .collect();
    if points.len() < 2 || points.last()?.0 < LARGE {
        return None;
    }
    let best = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let first = points.iter().find(|point| point.1 >= GOOD_ENOUGH * best)?;
    Some(format!(
        "{}: operations of {} reach {:.0}% of the best rate, {}.",
        curve.name,
        SizeText(first.0),
        first.1 / best * 100.0,
        rate(best)
    ))
}

fn what(figure: FigureName) -> &'static str {
    match figure {
        FigureName::Time => "Time there and back",
        FigureName::Rate => "Throughput",
    }
}

/// Returns the tables of a sweep.
pub(super) fn sweep_tables(series: &[Series]) -> Vec<TextTable> {
    let figures = [
        (FigureName::Time, "there and back, µs"),
        (FigureName::Rate, "throughput"),
    ];
    let table = |(figure, title)| {
        let curves = curves(series, figure);
        (!curves.is_empty()).then(|| sweep_table(&curves, figure, title))
    };
    figures.into_iter().filter_map(table).collect()
}

fn sweep_table(curves: &[SweepCurve<'_>], figure: FigureName, title: &'static str) -> TextTable {
    let mut table = TextTable::titled(title);
    let mut heading = vec!["size".to_owned()];
    for curve in curves {
        let columns = match figure {
            FigureName::Time => ["p50", "p99", "CPU"],
            FigureName::Rate => ["MB/s", "ops/s", "CPU"],
        };
        heading.extend(columns.map(str::to_owned));
        table.group(&curve.name, columns.len());
    }
    table.row(heading);
    for size in sizes(curves) {
        let mut row = vec![SizeText(size).to_string()];
        for curve in curves {
            row.extend(match curve.at(size) {
                None => ["-", "", ""].map(str::to_owned),
                Some(series) if figure == FigureName::Time => time_cells(series),
                Some(series) => rate_cells(series, size),
            });
        }
        table.row(row);
    }
    table
}

/// Returns the median and the 99th percentile of all times, and the processors that were busy at the end that dials.
fn time_cells(series: &Series) -> [String; 3] {
    let histogram = series.histogram();
    let time = |percentile| {
        let histogram = histogram.as_ref();
        histogram.map_or_else(String::new, |histogram| {
            digits(micros(histogram.percentile(percentile)))
        })
    };
    let busy = series.median_of(|run| Some(run.cpu_dialer));
    [time(50.0), time(99.0), share(busy)]
}

/// Returns the median of the rates, the operations per second, and the processors that were busy at the end that dials.
fn rate_cells(series: &Series, size: u32) -> [String; 3] {
    let rate = series.median().unwrap_or(0.0);
    // Seconds per gigabyte, times gigabytes per second.
    let busy = series.median_of(|run| Some(run.cpu_dialer * run.value / 1e9));
    [
        digits(rate / 1e6),
        format!("{:.0}", rate / f64::from(size)),
        share(busy),
    ]
}

fn share(busy: Option<f64>) -> String {
    busy.map_or_else(String::new, |busy| format!("{busy:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::report::{
        operations::{InlineName, Operations, VerbName, tests::send_of_64},
        series::tests::point,
    };

    fn of(inline: InlineName, size: u32) -> Operations {
        Operations {
            inline,
            size,
            ..send_of_64()
        }
    }

    /// Times without and with inline bytes, from 2 bytes on, each with three runs around the value.
    fn said(values: &[(f64, f64)], noise: f64) -> Vec<String> {
        let mut series = Vec::new();
        for (at, (without, with)) in (1..).zip(values) {
            let runs = |value: f64| [value, value * (1.0 + noise), value * (1.0 - noise)];
            series.push(point(of(InlineName::Never, 1 << at), &runs(*without)));
            series.push(point(of(InlineName::Always, 1 << at), &runs(*with)));
        }
        sweep_verdict(&series)
    }

    #[test]
    fn the_crossing_point_is_named() {
        let values = [
            (10.0, 8.0),
            (10.0, 8.5),
            (11.0, 10.0),
            (12.0, 14.0),
            (13.0, 18.0),
        ];
        assert_eq!(
            said(&values, 0.01),
            [
                "Time there and back: inline is faster from 2 B to 8 B, by 18% in the median; not inline is faster from 16 B to 32 B, by 27% in the median. The curves cross between 8 B and 16 B."
            ]
        );
    }

    #[test]
    fn a_size_out_of_line_is_no_crossing() {
        let values = [(10.0, 8.0), (10.0, 10.5), (10.0, 8.0), (10.0, 8.0)];
        assert_eq!(
            said(&values, 0.01),
            ["Time there and back: inline is faster from 2 B to 16 B, by 25% in the median."]
        );
    }

    #[test]
    fn noise_is_no_difference() {
        let values = [(10.0, 8.0), (10.0, 8.0), (10.0, 10.2), (10.0, 10.1)];
        assert_eq!(
            said(&values, 0.03),
            [
                "Time there and back: inline is faster from 2 B to 4 B, by 25% in the median; there is no difference beyond noise from 8 B to 16 B."
            ]
        );
        let same = said(&[(10.0, 10.0)], 0.0);
        assert_eq!(
            same,
            ["Time there and back: there is no difference beyond noise at 2 B."]
        );
    }

    #[test]
    fn several_curves_are_ranked_at_both_ends() {
        let of = |verb, size| Operations {
            verb,
            size,
            ..send_of_64()
        };
        let series = [
            point(of(VerbName::Write, 2), &[10.0]),
            point(of(VerbName::Write, 64), &[12.0]),
            point(of(VerbName::Read, 2), &[15.0]),
            point(of(VerbName::Read, 64), &[11.0]),
            point(of(VerbName::Send, 2), &[12.0]),
            point(of(VerbName::Send, 64), &[13.0]),
        ];
        assert_eq!(
            sweep_verdict(&series),
            [
                "Time there and back: at 2 B WRITE 10.0 µs, SEND 12.0 µs, READ 15.0 µs; at 64 B READ 11.0 µs, WRITE 12.0 µs, SEND 13.0 µs."
            ]
        );
    }

    #[test]
    fn the_ladder_says_how_large_a_chunk_must_be() {
        let of = |size, rate| {
            let what = Operations {
                figure: FigureName::Rate,
                verb: VerbName::Write,
                size,
                ..send_of_64()
            };
            point(what, &[rate])
        };
        let series = [of(4 << 10, 1e8), of(256 << 10, 1.9e9), of(1 << 20, 2e9)];
        assert_eq!(
            sweep_verdict(&series),
            ["WRITE: operations of 256 KiB reach 95% of the best rate, 2.0 GB/s."]
        );
    }

    #[test]
    fn each_size_has_a_row_and_each_curve_its_columns() {
        let of = |inline, size| Operations {
            figure: FigureName::Rate,
            inline,
            size,
            ..send_of_64()
        };
        let series = [
            point(of(InlineName::Never, 64), &[64e6, 128e6, 640e6]),
            point(of(InlineName::Never, 1024), &[1.024e9]),
            point(of(InlineName::Always, 64), &[192e6]),
        ];
        let tables = sweep_tables(&series);
        assert_eq!(tables.len(), 1);
        assert_eq!(
            tables[0].lines(),
            [
                "throughput",
                "                not inline               inline",
                "size   MB/s    ops/s   CPU  MB/s    ops/s   CPU",
                "64 B    128  2000000  0.00   192  3000000  0.00",
                "1 KiB  1024  1000000  0.00     -",
            ]
        );
    }
}
