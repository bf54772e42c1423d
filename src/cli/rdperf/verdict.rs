//! What the measurements mean, in the last lines of every run: what limits these hosts, which curve of a sweep is the
//! best one, and where that changes.

use crate::{
    Transport,
    cli::rdperf::table::{digits, ends, pair},
    options::TypedRate,
    perf::{
        check::{
            Finding, MeasuredRate, PairRate, Severity, TransferEnd, TransferRates, best_rails,
            lossy, rate, slow_pairs, verdict as verdict_of,
        },
        messages::{NetworkCounters, Traffic},
        report::{
            PerfDocument, SizeText,
            measurand::{Carrier, FigureName, Measurand, SMALL_OPERATION},
            series::{ProcessorLoad, Sample, Series, SweepCurve, curves, median, sizes, sum},
        },
    },
};

/// Returns what the measurements show to be wrong: slow pairs of hosts, and lost packets.
pub(super) fn findings(series: &[Series]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for medium in [Transport::Tcp, Transport::Rdma] {
        findings.extend(slow_pairs(&pair_rates(series, medium)));
    }
    // All measurements of a direction count together: a single short one can lose packets on a good network.
    let mut lost: Vec<(&str, &str, NetworkCounters)> = Vec::new();
    for one in series {
        let Measurand::Bandwidth { traffic, .. } = one.what else {
            continue;
        };
        let Some((from, to)) = ends(one, traffic) else {
            continue;
        };
        let counters = one.counters();
        let same = lost
            .iter_mut()
            .find(|known| (known.0, known.1) == (from, to));
        match same {
            Some(known) => known.2 = sum(known.2, counters),
            None => lost.push((from, to, counters)),
        }
    }
    let of_directions = lost
        .iter()
        .flat_map(|(from, to, counters)| lossy(from, to, counters));
    findings.extend(of_directions);
    findings
}

/// Returns the rate of streams from one host to another, for each two hosts that were measured: that of the first
/// number of streams.
fn pair_rates(series: &[Series], medium: Transport) -> Vec<PairRate> {
    let mut rates: Vec<PairRate> = Vec::new();
    for rate in series.iter().filter_map(|one| pair_rate(one, medium)) {
        let is_known = |known: &PairRate| (&known.from, &known.to) == (&rate.from, &rate.to);
        if !rates.iter().any(is_known) {
            rates.push(rate);
        }
    }
    rates
}

/// Returns the rate of streams in one direction.
pub(super) fn pair_rate(series: &Series, medium: Transport) -> Option<PairRate> {
    let Measurand::Bandwidth {
        carrier: Carrier::Stream,
        transport,
        traffic,
        ..
    } = series.what
    else {
        return None;
    };
    let (from, to) = ends(series, traffic)?;
    (transport == medium).then_some(PairRate {
        from: from.to_owned(),
        to: to.to_owned(),
        bytes_per_second: series.median()?,
    })
}

/// Returns what limits the hosts. `rates` has the rate of the port of each transport in bytes per second, where it is
/// known.
pub(super) fn verdict(document: &PerfDocument, rates: [Option<f64>; 2]) -> String {
    let series = &document.series;
    let of_sweep = sweep_verdict(series);
    if !of_sweep.is_empty() {
        return of_sweep.join("\n");
    }
    let is_rdma = series
        .iter()
        .any(|one| one.what.transport() == Some(Transport::Rdma));
    let medium = if is_rdma {
        Transport::Rdma
    } else {
        Transport::Tcp
    };
    match &pair_rates(series, medium)[..] {
        [] => of_times(series),
        // Both directions of one pair.
        [_] | [_, _] => of_pair(document, medium, rates[usize::from(is_rdma)]),
        pairs => of_matrix(pairs, medium),
    }
}

/// Returns the verdict of a run with one pair of hosts.
fn of_pair(document: &PerfDocument, medium: Transport, port: Option<f64>) -> String {
    let streams = document.series.iter().filter(|one| is_of(one, medium));
    let streams = streams.filter_map(|one| Some((one, forward_threads(one)?)));
    let best = streams.max_by(|(one, _), (other, _)| {
        let (one, other) = (one.median(), other.median());
        one.unwrap_or(0.0).total_cmp(&other.unwrap_or(0.0))
    });
    let sentence = best.and_then(|(best, threads)| {
        let rates = transfer(document, (best, threads), medium, port)?;
        let to = best.to.as_deref()?;
        Some(format!(
            "{} to {to}, {medium}: {}",
            best.from,
            verdict_of(&rates)
        ))
    });
    let rails = best_rails(&rail_rates(&document.series));
    let lines: Vec<_> = sentence.into_iter().chain(rails).collect();
    lines.join("\n")
}

/// Returns what is known about the transfer of a series of streams, of so many threads at each end.
fn transfer<'a>(
    document: &'a PerfDocument,
    (best, threads): (&'a Series, u16),
    medium: Transport,
    port: Option<f64>,
) -> Option<TransferRates<'a>> {
    let (from, to) = (&*best.from, best.to.as_deref()?);
    let cipher = best.cipher();
    let end = |host: &'a str, is_sink: bool| {
        let of_run = |run: &Sample| {
            if is_sink {
                (run.cpu_listener, run.load_listener)
            } else {
                (run.cpu_dialer, run.load_dialer)
            }
        };
        let loads: Vec<_> = best.runs.iter().filter_map(|run| of_run(run).1).collect();
        TransferEnd {
            host,
            disk: disk(&document.series, host, is_sink),
            used: best.median_of(|run| Some(of_run(run).0 * run.value / 1e9)),
            load: median_load(&loads),
            ciphers: cipher.and_then(|cipher| document.host(host)?.encrypts(cipher)),
        }
    };
    let raw = document.series.iter().find(|one| match one.what {
        Measurand::Bandwidth {
            carrier: Carrier::Socket | Carrier::Write,
            ..
        } => is_of(one, medium),
        _ => false,
    });
    let subjects = [format!("{from} to {to}"), format!("{to} to {from}")];
    let found = |code: &str, subjects: &[String]| {
        let is_found = |finding: &&Finding| {
            finding.code == code
                && finding.severity == Severity::Repair
                && subjects.contains(&finding.subject)
        };
        let found = document.findings.iter().find(is_found);
        found.map(|finding| &*finding.what)
    };
    let loss = match medium {
        Transport::Tcp => "loss-tcp",
        Transport::Rdma => "loss-rdma",
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate in Mbit/s is positive and far below the limit"
    )]
    let port_mbps = port.map(|bytes| (bytes * 8.0 / 1e6) as u32);
    Some(TransferRates {
        ends: [end(from, false), end(to, true)],
        stream: MeasuredRate::of(best)?,
        threads,
        raw: raw.and_then(MeasuredRate::of),
        port_mbps,
        cipher,
        loss: found(loss, &subjects[..1]),
        mtu: found("mtu-path", &subjects),
    })
}

fn is_of(series: &Series, medium: Transport) -> bool {
    series.what.transport() == Some(medium)
}

/// Returns the number of threads at each end of streams in the direction of the end that dials; none of others.
fn forward_threads(series: &Series) -> Option<u16> {
    match series.what {
        Measurand::Bandwidth {
            carrier: Carrier::Stream,
            traffic: Traffic::Forward,
            streams,
            rails,
            ..
        } => Some(streams.saturating_mul(rails.unwrap_or(1).into())),
        _ => None,
    }
}

/// Returns the rates of one stream over TCP with different numbers of rails, that of one rail first.
fn rail_rates(series: &[Series]) -> Vec<(u8, MeasuredRate)> {
    let rails = |one: &Series| match one.what {
        Measurand::Bandwidth {
            carrier: Carrier::Stream,
            transport: Transport::Tcp,
            traffic: Traffic::Forward,
            streams: 1,
            rails,
            ..
        } => Some((rails.unwrap_or(1), MeasuredRate::of(one)?)),
        _ => None,
    };
    series.iter().filter_map(rails).collect()
}

/// Returns what a host reads from its disk, or writes to it.
fn disk(series: &[Series], host: &str, is_written: bool) -> Option<MeasuredRate> {
    let found = series.iter().find(|one| {
        let is_of = match one.what {
            Measurand::Write { .. } => is_written,
            Measurand::Read { .. } => !is_written,
            _ => false,
        };
        is_of && one.from == host
    });
    found.and_then(MeasuredRate::of)
}

/// Returns the load of a host in most runs.
fn median_load(loads: &[ProcessorLoad]) -> Option<ProcessorLoad> {
    let middle = |value: fn(&ProcessorLoad) -> f64| median(loads.iter().map(value));
    Some(ProcessorLoad {
        processors: loads.first()?.processors,
        busy: middle(|load| load.busy)?,
        others: middle(|load| load.others)?,
    })
}

/// Returns a sentence for each direction between two hosts whose fastest streams, one way, carry less than was
/// `expected`. In a run with one pair only the direction from the first host counts: the other one is measured with one
/// stream.
pub(super) fn shortfalls(series: &[Series], expected: &TypedRate) -> Vec<String> {
    let is_one_pair = pair(series).is_some();
    let mut best: Vec<(&str, &str, f64)> = Vec::new();
    for one in series {
        let Measurand::Bandwidth {
            carrier: Carrier::Stream,
            traffic,
            ..
        } = one.what
        else {
            continue;
        };
        let is_counted = !is_one_pair || traffic == Traffic::Forward;
        let known = ends(one, traffic).filter(|_| is_counted);
        let Some(((from, to), rate)) = known.zip(one.median()) else {
            continue;
        };
        match best
            .iter_mut()
            .find(|known| (known.0, known.1) == (from, to))
        {
            Some(known) => known.2 = known.2.max(rate),
            None => best.push((from, to, rate)),
        }
    }
    let short = best
        .into_iter()
        .filter(|(.., rate)| *rate < expected.bytes_per_second);
    let sentence = |(from, to, rate): (&str, &str, f64)| {
        let (is, wanted) = (
            expected.show(rate),
            expected.show(expected.bytes_per_second),
        );
        format!("{from} to {to}: {is}, and {wanted} was expected")
    };
    short.map(sentence).collect()
}

/// Returns the verdict of a run with several pairs of hosts.
fn of_matrix(pairs: &[PairRate], medium: Transport) -> String {
    let rate = |pair: &PairRate| pair.bytes_per_second;
    let slowest = pairs
        .iter()
        .min_by(|one, other| rate(one).total_cmp(&rate(other)));
    let Some((slowest, median)) = slowest.zip(median(pairs.iter().map(rate))) else {
        return String::new();
    };
    format!(
        "{medium}: the median of all pairs is {} GB/s; the slowest is {} to {} with {} GB/s",
        digits(median / 1e9),
        slowest.from,
        slowest.to,
        digits(rate(slowest) / 1e9)
    )
}

/// Returns the verdict of a run that has measured no bytes per second between hosts.
fn of_times(series: &[Series]) -> String {
    let is_stream = |one: &&Series| {
        matches!(
            one.what,
            Measurand::Latency {
                carrier: Carrier::Stream,
                ..
            }
        )
    };
    let times = series.iter().filter(is_stream);
    let time = |one: &Series| one.median().unwrap_or(f64::MAX);
    let fastest = times.min_by(|one, other| time(one).total_cmp(&time(other)));
    if let Some((one, to, median)) =
        fastest.and_then(|one| Some((one, one.to.as_deref()?, one.median()?)))
    {
        let medium = one.what.transport().map(|medium| medium.to_string());
        return format!(
            "{} to {to}, {}: the shortest time there and back is {} µs ({})",
            one.from,
            medium.unwrap_or_default(),
            digits(median),
            one.what
        );
    }
    let connects = series
        .iter()
        .filter(|one| matches!(one.what, Measurand::Connect { .. }));
    let fastest = connects.min_by(|one, other| time(one).total_cmp(&time(other)));
    if let Some((one, to, median)) =
        fastest.and_then(|one| Some((one, one.to.as_deref()?, one.median()?)))
    {
        let medium = one.what.transport().map(|medium| medium.to_string());
        return format!(
            "{} to {to}, {}: the shortest time to connect is {} µs",
            one.from,
            medium.unwrap_or_default(),
            digits(median)
        );
    }
    let slowest = series.iter().filter(|one| one.to.is_none());
    let slowest = slowest.min_by(|one, other| time(one).total_cmp(&time(other)));
    match slowest.and_then(|one| Some((one, one.median()?))) {
        Some((one, median)) => format!(
            "the slowest end is {}: {}, {} GB/s",
            one.from,
            one.what,
            digits(median / 1e9)
        ),
        None => String::new(),
    }
}

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
    let what = figure_text(figure);
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
    format!("{} is faster {}, {gain}", curve.name, sizes_text(part))
}

/// Returns that no curve is the better one for these sizes.
fn nothing(part: &[Comparison]) -> String {
    format!("there is no difference beyond noise {}", sizes_text(part))
}

fn sizes_text(part: &[Comparison]) -> String {
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
    Some(format!("{}: {}.", figure_text(figure), said.join("; ")))
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

fn figure_text(figure: FigureName) -> &'static str {
    match figure {
        FigureName::Time => "Time there and back",
        FigureName::Rate => "Throughput",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{
        messages::Verb,
        report::{
            measurand::{InlineName, Operations, tests::send_of_64},
            series::{Sample, tests::point},
        },
    };

    fn streams(from: &str, to: &str, traffic: Traffic, streams: u16, rate: f64) -> Series {
        Series {
            from: from.to_owned(),
            to: Some(to.to_owned()),
            what: Measurand::Bandwidth {
                carrier: Carrier::Stream,
                transport: Transport::Tcp,
                traffic,
                streams,
                rails: None,
                size: None,
            },
            runs: vec![Sample {
                value: rate,
                ..Sample::default()
            }],
        }
    }

    fn said(series: Vec<Series>) -> String {
        let document = PerfDocument {
            series,
            ..PerfDocument::default()
        };
        verdict(&document, [None, None])
    }

    #[test]
    fn a_pair_has_a_verdict_whatever_the_number_of_streams() {
        use Traffic::{Backward, Forward};
        for counts in [&[1, 4][..], &[4], &[2, 8]] {
            let forward = counts
                .iter()
                .map(|&count| streams("a", "b", Forward, count, 2e9));
            let backward = streams("a", "b", Backward, counts[0], 1e9);
            let said = said(forward.chain([backward]).collect());
            assert!(said.starts_with("a to b, TCP: network 2.0 GB/s"), "{said}");
        }
    }

    #[test]
    fn of_several_pairs_the_slowest_is_named() {
        let pairs = [("a", "b", 1e9), ("a", "c", 2e8), ("b", "c", 1e9)];
        let pairs = pairs.map(|(a, b, rate)| streams(a, b, Traffic::Forward, 4, rate));
        assert_eq!(findings(&pairs)[0].subject, "a to c");
        let said = said(pairs.to_vec());
        assert!(said.contains("the slowest is a to c"), "{said}");
    }

    #[test]
    fn a_direction_loses_packets_by_all_of_its_measurements() {
        use Traffic::{Backward, Forward};
        let counted = |traffic, sent, again| {
            let mut series = streams("a", "b", traffic, 4, 1e9);
            series.runs[0].counters = Some(NetworkCounters {
                tcp_segments: sent,
                tcp_retransmitted: again,
                ..NetworkCounters::default()
            });
            series
        };
        // One short measurement has sent 2% again, all of them 0.2%.
        let few = [counted(Forward, 5_000, 100), counted(Forward, 50_000, 10)];
        assert_eq!(findings(&few), []);
        // The other direction loses nothing, and does not hide what this one loses.
        let many = [
            counted(Forward, 500_000, 0),
            counted(Backward, 50_000, 2_000),
        ];
        let found = findings(&many);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].subject, "b to a");
    }

    fn of(inline: InlineName, size: u32) -> Operations {
        Operations {
            inline,
            size,
            ..send_of_64()
        }
    }

    /// Times without and with inline bytes, from 2 bytes on, each with three runs around the value.
    fn sweep_said(values: &[(f64, f64)], noise: f64) -> Vec<String> {
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
            sweep_said(&values, 0.01),
            [
                "Time there and back: inline is faster from 2 B to 8 B, by 18% in the median; not inline is faster from 16 B to 32 B, by 27% in the median. The curves cross between 8 B and 16 B."
            ]
        );
    }

    #[test]
    fn a_size_out_of_line_is_no_crossing() {
        let values = [(10.0, 8.0), (10.0, 10.5), (10.0, 8.0), (10.0, 8.0)];
        assert_eq!(
            sweep_said(&values, 0.01),
            ["Time there and back: inline is faster from 2 B to 16 B, by 25% in the median."]
        );
    }

    #[test]
    fn noise_is_no_difference() {
        let values = [(10.0, 8.0), (10.0, 8.0), (10.0, 10.2), (10.0, 10.1)];
        assert_eq!(
            sweep_said(&values, 0.03),
            [
                "Time there and back: inline is faster from 2 B to 4 B, by 25% in the median; there is no difference beyond noise from 8 B to 16 B."
            ]
        );
        let same = sweep_said(&[(10.0, 10.0)], 0.0);
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
            point(of(Verb::Write, 2), &[10.0]),
            point(of(Verb::Write, 64), &[12.0]),
            point(of(Verb::Read, 2), &[15.0]),
            point(of(Verb::Read, 64), &[11.0]),
            point(of(Verb::Send, 2), &[12.0]),
            point(of(Verb::Send, 64), &[13.0]),
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
                verb: Verb::Write,
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
}
