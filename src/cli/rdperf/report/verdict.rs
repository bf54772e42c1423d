//! What limits these hosts: the last line of every run. Pure, no I/O.

use super::{
    sweep_verdict::sweep_verdict,
    table::{digits, ends},
};
use crate::perf::{
    check::{Finding, PairRate, TransferRates, limit, lossy, slow_pairs},
    messages::NetworkCounters,
    report::{
        document::PerfDocument,
        measurand::{Carrier, Measurand, Medium, TrafficName},
        sample::sum,
        series::{Series, median},
    },
};

/// Returns what the measurements show to be wrong: slow pairs of hosts, and lost packets.
pub(super) fn findings(series: &[Series]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for medium in [Medium::Tcp, Medium::Rdma] {
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
fn pair_rates(series: &[Series], medium: Medium) -> Vec<PairRate> {
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
fn pair_rate(series: &Series, medium: Medium) -> Option<PairRate> {
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
        .any(|one| one.what.medium() == Some(Medium::Rdma));
    let medium = if is_rdma { Medium::Rdma } else { Medium::Tcp };
    match &pair_rates(series, medium)[..] {
        [] => of_times(series),
        // Both directions of one pair.
        [_] | [_, _] => of_pair(series, medium, rates[usize::from(is_rdma)]),
        pairs => of_matrix(pairs, medium),
    }
}

/// Returns the verdict of a run with one pair of hosts.
fn of_pair(series: &[Series], medium: Medium, port: Option<f64>) -> String {
    let is_stream = |one: &&Series| {
        matches!(
            one.what,
            Measurand::Bandwidth { carrier: Carrier::Stream, traffic: TrafficName::Forward, transport, .. }
                if transport == medium
        )
    };
    let streams = series.iter().filter(is_stream);
    let best = streams.max_by(|one, other| {
        let (one, other) = (one.median(), other.median());
        one.unwrap_or(0.0).total_cmp(&other.unwrap_or(0.0))
    });
    let Some((best, stream, to)) =
        best.and_then(|best| Some((best, best.median()?, best.to.as_deref()?)))
    else {
        return String::new();
    };
    let raw = series.iter().find(|one| match one.what {
        Measurand::Bandwidth {
            carrier: Carrier::Socket | Carrier::Write,
            transport,
            ..
        } => transport == medium,
        _ => false,
    });
    let alone = |host: &str, is_written: bool| {
        let found = series.iter().find(|one| {
            let is_of = match one.what {
                Measurand::Write { .. } => is_written,
                Measurand::Read { .. } => !is_written,
                _ => false,
            };
            is_of && one.from == host
        });
        found.and_then(Series::median)
    };
    let processors = |of: fn(&crate::perf::report::sample::Sample) -> f64| {
        best.median_of(|run| Some(of(run) * run.value / 1e9))
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate in Mbit/s is positive and far below the limit"
    )]
    let port_mbps = port.map(|bytes| (bytes * 8.0 / 1e6) as u32);
    let limit = limit(&TransferRates {
        source: &best.from,
        sink: to,
        stream,
        raw: raw.and_then(Series::median),
        port_mbps,
        source_read: alone(&best.from, false),
        sink_write: alone(to, true),
        source_processors: processors(|run| run.cpu_dialer),
        sink_processors: processors(|run| run.cpu_listener),
    });
    format!("{} to {to}, {medium}: {limit}", best.from)
}

/// Returns the verdict of a run with several pairs of hosts.
fn of_matrix(pairs: &[PairRate], medium: Medium) -> String {
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
        let medium = one.what.medium().map(|medium| medium.to_string());
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
        let medium = one.what.medium().map(|medium| medium.to_string());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::report::sample::Sample;

    fn streams(from: &str, to: &str, traffic: TrafficName, streams: u16, rate: f64) -> Series {
        Series {
            from: from.to_owned(),
            to: Some(to.to_owned()),
            what: Measurand::Bandwidth {
                carrier: Carrier::Stream,
                transport: Medium::Tcp,
                traffic,
                streams,
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
        use TrafficName::{Backward, Forward};
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
        let pairs = pairs.map(|(a, b, rate)| streams(a, b, TrafficName::Forward, 4, rate));
        assert_eq!(findings(&pairs)[0].subject, "a to c");
        let said = said(pairs.to_vec());
        assert!(said.contains("the slowest is a to c"), "{said}");
    }

    #[test]
    fn a_direction_loses_packets_by_all_of_its_measurements() {
        use TrafficName::{Backward, Forward};
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
}
