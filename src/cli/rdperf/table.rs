//! The report as tables for people. Pure, no I/O.

use super::verdict::pair_rate;
use crate::{
    Transport,
    cli::shared::table::TextTable,
    perf::{
        messages::Traffic,
        report::{
            PerfDocument, SizeText,
            measurand::{FigureName, Measurand},
            series::{Series, SweepCurve, curves, micros, sizes},
        },
    },
};

/// The columns of words: the first one.
const WORDS: &[usize] = &[0];

/// Returns the tables of a report. `rates` has the rate of the port of each transport in bytes per second, where it is
/// known.
pub(super) fn tables(document: &PerfDocument, rates: [Option<f64>; 2]) -> Vec<TextTable> {
    let series: Vec<_> = document.series.iter().collect();
    if pair(&document.series).is_some() {
        let tables = [
            bandwidth(document, rates),
            latency(&series),
            storage(&series),
        ];
        let tables = tables.into_iter().flatten();
        return tables.chain(sweep_tables(&document.series)).collect();
    }
    let names: Vec<_> = document
        .hosts
        .iter()
        .map(|host| host.name.clone())
        .collect();
    let mut tables = matrices(&names, &document.series);
    tables.extend(storage(&series));
    tables
}

/// Returns true if more than one pair of hosts was measured.
pub(super) fn has_several_pairs(series: &[Series]) -> bool {
    pair(series).is_none() && series.iter().any(|series| series.to.is_some())
}

/// Returns the two hosts of a report with one pair; none if there are several.
pub(super) fn pair(series: &[Series]) -> Option<(&str, &str)> {
    let ends = |series: &'_ Series| -> Option<(String, String)> {
        Some((series.from.clone(), series.to.clone()?))
    };
    let first = series.iter().find(|series| series.to.is_some())?;
    let is_first = |other: (String, String)| Some(other) == ends(first);
    series
        .iter()
        .filter_map(ends)
        .all(is_first)
        .then(|| (first.from.as_str(), first.to.as_deref().unwrap_or_default()))
}

/// Returns the table of bytes per second: a row for each measurement, and TCP beside RDMA.
fn bandwidth(document: &PerfDocument, rates: [Option<f64>; 2]) -> Option<TextTable> {
    let is_of = |series: &&Series| matches!(series.what, Measurand::Bandwidth { .. });
    let of_pair: Vec<_> = document.series.iter().filter(is_of).collect();
    if of_pair.is_empty() {
        return None;
    }
    let has = |medium: Transport| {
        of_pair
            .iter()
            .any(|series| series.what.transport() == Some(medium))
    };
    let media = [Transport::Tcp, Transport::Rdma].into_iter().zip(rates);
    let media: Vec<_> = media.filter(|(medium, _)| has(*medium)).collect();
    let mut heading = vec!["bandwidth, GB/s".to_owned()];
    for (medium, port) in &media {
        heading.push(medium.to_string());
        heading.extend(["spread", "CPU s/GB"].map(str::to_owned));
        heading.extend(port.map(|_| "of port".to_owned()));
    }
    let mut table = TextTable::new(WORDS, heading);
    let mut names: Vec<String> = Vec::new();
    for series in &of_pair {
        let name = series.what.to_string();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let mut row = vec![name.clone()];
        for &(medium, port) in &media {
            let found = of_pair.iter().find(|series| {
                series.what.transport() == Some(medium) && series.what.to_string() == name
            });
            let found = found.and_then(|series| Some((series, series.median()?)));
            let mut cells = match found {
                Some((series, median)) => rate_cells(series, median, port),
                None => vec!["-".to_owned()],
            };
            // The figures of the other transport stand under their own heading.
            cells.resize(columns(port), String::new());
            row.extend(cells);
        }
        table.rows.push(row);
    }
    table.rows.extend(cipher_row(document, &media));
    Some(table)
}

/// Returns the row of the cipher: what one thread of the slower host encrypts, and what both ends spend on it for each
/// gigabyte. None if no stream was encrypted.
fn cipher_row(document: &PerfDocument, media: &[(Transport, Option<f64>)]) -> Option<Vec<String>> {
    let encrypted = |medium: Transport| {
        let mut of_medium = document.series.iter();
        of_medium.find_map(|one| {
            let is_of = one.what.transport() == Some(medium);
            let cipher = one.cipher().filter(|_| is_of)?;
            let speed = |host: &str| document.host(host)?.encrypts(cipher);
            Some((cipher, speed(&one.from)?, speed(one.to.as_deref()?)?))
        })
    };
    let found: Vec<_> = media.iter().map(|(medium, _)| encrypted(*medium)).collect();
    let (cipher, ..) = found.iter().flatten().next()?;
    let mut row = vec![format!("{cipher}, one thread")];
    for (found, (_, port)) in found.iter().zip(media) {
        let mut cells = match found {
            Some((_, from, to)) => vec![
                digits(from.min(*to) / 1e9),
                String::new(),
                format!("{:.2} + {:.2}", 1e9 / from, 1e9 / to),
            ],
            None => vec!["-".to_owned()],
        };
        cells.resize(columns(*port), String::new());
        row.extend(cells);
    }
    Some(row)
}

/// Returns the number of columns of a transport in the table of bytes per second.
fn columns(port: Option<f64>) -> usize {
    if port.is_some() { 4 } else { 3 }
}

fn rate_cells(series: &Series, median: f64, port: Option<f64>) -> Vec<String> {
    let cpu = |of: fn(&crate::perf::report::series::Sample) -> f64| {
        let value = series.median_of(|run| Some(of(run))).unwrap_or(0.0);
        format!("{value:.2}")
    };
    // Both directions of a port have its rate at the same time.
    let directions = match series.what {
        Measurand::Bandwidth {
            traffic: Traffic::Both,
            ..
        } => 2.0,
        _ => 1.0,
    };
    let share = port.map(|port| format!("{:.0}%", median / directions / port * 100.0));
    let cpu = format!(
        "{} + {}",
        cpu(|run| run.cpu_dialer),
        cpu(|run| run.cpu_listener)
    );
    let mut cells = vec![digits(median / 1e9), spread(series), cpu];
    cells.extend(share);
    cells
}

fn spread(series: &Series) -> String {
    format!("±{:.0}%", series.spread() * 100.0)
}

fn latency(series: &[&Series]) -> Option<TextTable> {
    let is_of = |series: &&&Series| {
        matches!(
            series.what,
            Measurand::Latency { .. } | Measurand::Connect { .. }
        )
    };
    let heading = [
        "latency, µs",
        "trips/s",
        "spread",
        "average",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
    ];
    let mut table = TextTable::new(WORDS, heading);
    for series in series.iter().filter(is_of) {
        let medium = series.what.transport().map(|medium| medium.to_string());
        let mut row = vec![format!("{} {}", medium.unwrap_or_default(), series.what)];
        match series.histogram() {
            None => row.push("-".to_owned()),
            Some(histogram) => {
                let trips = series.median_of(|run| run.trips_per_second);
                row.push(format!("{:.0}", trips.unwrap_or(0.0)));
                row.push(spread(series));
                row.push(digits(
                    series.median_of(|run| run.average_us).unwrap_or(0.0),
                ));
                for percentile in [50.0, 90.0, 99.0, 99.9] {
                    row.push(digits(micros(histogram.percentile(percentile))));
                }
                row.push(digits(micros(histogram.max())));
            }
        }
        table.rows.push(row);
    }
    (table.rows.len() > 1).then_some(table)
}

/// Returns the table of what hosts can read and write alone.
fn storage(series: &[&Series]) -> Option<TextTable> {
    let mut table = TextTable::new(WORDS, ["ends, GB/s", "", "spread", "CPU s/GB"]);
    for series in series {
        if let (Measurand::Read { .. } | Measurand::Write { .. }, Some(median)) =
            (&series.what, series.median())
        {
            let cpu = series.median_of(|run| Some(run.cpu_dialer)).unwrap_or(0.0);
            table.rows.push(vec![
                format!("{}: {}", series.from, series.what),
                digits(median / 1e9),
                spread(series),
                format!("{cpu:.2}"),
            ]);
        }
    }
    (table.rows.len() > 1).then_some(table)
}

/// Returns the matrices of a run with several pairs: a row for each host that sends, a column for each that receives.
fn matrices(names: &[String], series: &[Series]) -> Vec<TextTable> {
    let rate = |medium| {
        let title = format!("bandwidth, GB/s, {medium}");
        matrix(&title, names, |from, to| one_way(series, medium, from, to))
    };
    let time = |medium| {
        let title = format!("latency p50, µs, {medium}");
        matrix(&title, names, |from, to| {
            round_trip(series, medium, from, to)
        })
    };
    let media = [Transport::Tcp, Transport::Rdma];
    let matrices = media.map(rate).into_iter().chain(media.map(time));
    matrices.flatten().collect()
}

fn matrix(
    title: &String,
    names: &[String],
    value: impl Fn(&str, &str) -> Option<f64>,
) -> Option<TextTable> {
    let mut table = TextTable::new(WORDS, std::iter::once(title).chain(names));
    let mut has_values = false;
    for from in names {
        let mut row = vec![format!("{from} to")];
        for to in names {
            let value = value(from, to);
            has_values |= value.is_some();
            row.push(value.map_or_else(|| "-".to_owned(), digits));
        }
        table.rows.push(row);
    }
    has_values.then_some(table)
}

/// Returns the rate of a stream from one host to another, in gigabytes per second.
fn one_way(series: &[Series], medium: Transport, from: &str, to: &str) -> Option<f64> {
    let mut rates = series.iter().filter_map(|one| pair_rate(one, medium));
    let rate = rates.find(|rate| rate.from == from && rate.to == to)?;
    Some(rate.bytes_per_second / 1e9)
}

/// Returns the hosts that send and receive in a measurement of one direction.
pub(super) fn ends(series: &Series, traffic: Traffic) -> Option<(&str, &str)> {
    let to = series.to.as_deref()?;
    match traffic {
        Traffic::Forward => Some((&series.from, to)),
        Traffic::Backward => Some((to, &series.from)),
        Traffic::Both => None,
    }
}

fn round_trip(series: &[Series], medium: Transport, from: &str, to: &str) -> Option<f64> {
    series.iter().find_map(|series| {
        let Measurand::Latency { transport, .. } = series.what else {
            return None;
        };
        let other = series.to.as_deref()?;
        let is_this = (series.from == from && other == to) || (series.from == to && other == from);
        (transport == medium && is_this)
            .then(|| series.median())
            .flatten()
    })
}

fn sweep_tables(series: &[Series]) -> Vec<TextTable> {
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
    let mut heading = vec!["size"];
    let mut groups = Vec::new();
    for curve in curves {
        let columns = match figure {
            FigureName::Time => ["p50", "p99", "CPU"],
            FigureName::Rate => ["MB/s", "ops/s", "CPU"],
        };
        heading.extend(columns);
        groups.push((curve.name.clone(), columns.len()));
    }
    let mut table = TextTable::new(WORDS, heading);
    table.title = Some(title);
    table.groups = groups;
    for size in sizes(curves) {
        let mut row = vec![SizeText(size).to_string()];
        for curve in curves {
            row.extend(match curve.at(size) {
                None => ["-", "", ""].map(str::to_owned),
                Some(series) if figure == FigureName::Time => sweep_time_cells(series),
                Some(series) => sweep_rate_cells(series, size),
            });
        }
        table.rows.push(row);
    }
    table
}

/// Returns the median and the 99th percentile of all times, and the processors that were busy at the end that dials.
fn sweep_time_cells(series: &Series) -> [String; 3] {
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
fn sweep_rate_cells(series: &Series, size: u32) -> [String; 3] {
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

/// Returns a number with three digits.
pub(super) fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 || value == 0.0 => format!("{value:.2}"),
        value if value >= 0.1 => format!("{value:.3}"),
        value => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Cipher,
        perf::{
            check::tests::host,
            messages::{CipherSpeed, HostFacts},
            report::{
                HostSummary,
                measurand::{Carrier, InlineName, Operations, tests::send_of_64},
                series::{Sample, tests::point},
            },
        },
    };

    #[test]
    fn one_pair_is_told_from_several() {
        let one = point(send_of_64(), &[1.0]);
        let mut other = one.clone();
        other.to = Some("h3".to_owned());
        let mut storage = one.clone();
        storage.to = None;
        assert_eq!(pair(&[storage.clone(), one.clone()]), Some(("h1", "h2")));
        assert!(has_several_pairs(&[one.clone(), other]));
        assert!(!has_several_pairs(&[one]) && !has_several_pairs(&[storage]));
    }

    #[test]
    fn the_cipher_has_a_row_where_streams_are_encrypted() {
        let series = |transport, cipher| Series {
            from: "h1".to_owned(),
            to: Some("h2".to_owned()),
            what: Measurand::Bandwidth {
                carrier: Carrier::Stream,
                transport,
                traffic: Traffic::Forward,
                streams: 1,
                rails: None,
                size: None,
            },
            runs: vec![Sample {
                value: 2e9,
                cpu_dialer: 0.25,
                cpu_listener: 0.3,
                cipher,
                ..Sample::default()
            }],
        };
        let host = |number, bytes_per_second| {
            let facts = HostFacts {
                ciphers: vec![CipherSpeed {
                    cipher: Cipher::Aes256Gcm,
                    bytes_per_second,
                }],
                ..host(number)
            };
            HostSummary::new(&format!("h{number}"), &facts)
        };
        let document = |of_tcp, of_rdma| PerfDocument {
            hosts: vec![host(1, 20_000_000_000), host(2, 10_000_000_000)],
            series: vec![
                series(Transport::Tcp, of_tcp),
                series(Transport::Rdma, of_rdma),
            ],
            ..PerfDocument::default()
        };
        let lines = |document: &PerfDocument| {
            let table = bandwidth(document, [None, Some(4e9)]).unwrap();
            table.lines()
        };
        let cipher = Some(Cipher::Aes256Gcm);
        assert_eq!(
            lines(&document(cipher, cipher)),
            [
                "bandwidth, GB/s           TCP  spread     CPU s/GB  RDMA  spread     CPU s/GB  of port",
                "stream, one way          2.00     ±0%  0.25 + 0.30  2.00     ±0%  0.25 + 0.30      50%",
                "AES-256-GCM, one thread  10.0          0.05 + 0.10  10.0          0.05 + 0.10",
            ]
        );
        assert_eq!(lines(&document(None, cipher)).len(), 3);
        assert_eq!(lines(&document(None, None)).len(), 2);
    }

    #[test]
    fn numbers_have_three_digits() {
        let values = [0.0, 0.0123, 0.123, 1.5, 12.34, 123.4];
        let expected = ["0.00", "0.0123", "0.123", "1.50", "12.3", "123"];
        assert_eq!(values.map(digits), expected);
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
