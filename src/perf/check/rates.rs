//! Measured rates and counters: slow pairs of hosts, lost packets, and what limits a transfer. Pure, no I/O.

use std::fmt;

use super::{Finding, rate, share};
use crate::{
    Cipher,
    perf::{
        messages::NetworkCounters,
        report::series::{ProcessorLoad, Series, median},
    },
};

/// A pair is slow if it has less than this part of the median of all pairs.
const SLOW_PART: f64 = 0.5;

/// The fewest pairs that have a median which says something: of two pairs each may be the odd one.
const MIN_PAIRS: usize = 3;

/// The fewest packets of which a part says something.
const MIN_PACKETS: u64 = 1_000;

/// The part of TCP's segments that a good network loses at most: 1%. TCP itself fills the queues of a good network
/// until some segments are lost: 0.1% to 0.3% between two namespaces of one machine.
const TCP_LOSS: f64 = 0.01;

/// The part of RDMA packets that a good network loses at most: 0.01%. RDMA sends everything again from the lost packet
/// on.
const RDMA_LOSS: f64 = 0.0001;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PairRate {
    /// The name of the end that sends.
    pub(crate) from: String,
    /// The name of the end that receives.
    pub(crate) to: String,
    pub(crate) bytes_per_second: f64,
}

/// Returns the pairs that are slower than half of the median of all pairs, the slowest first.
pub(crate) fn slow_pairs(pairs: &[PairRate]) -> Vec<Finding> {
    let rates = pairs.iter().map(|pair| pair.bytes_per_second);
    let Some(median) = median(rates).filter(|_| pairs.len() >= MIN_PAIRS) else {
        return Vec::new();
    };
    let is_slow = |pair: &&PairRate| pair.bytes_per_second < SLOW_PART * median;
    let mut slow: Vec<&PairRate> = pairs.iter().filter(is_slow).collect();
    slow.sort_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
    let finding = |pair: &PairRate| {
        let what = format!(
            "{} is {} of the median of all pairs, {}",
            rate(pair.bytes_per_second),
            share(pair.bytes_per_second / median),
            rate(median)
        );
        let subject = format!("{} to {}", pair.from, pair.to);
        let finding = Finding::repair("slow-pair", &subject, what);
        finding.with(format!(
            "compare `ethtool INTERFACE` and `tc qdisc show` on {} and {} with another host",
            pair.from, pair.to
        ))
    };
    slow.into_iter().map(finding).collect()
}

/// Returns the packets that were lost while a host has sent bytes to another one. `counters` are how much the counters
/// of both ends grew.
pub(crate) fn lossy(from: &str, to: &str, counters: &NetworkCounters) -> Vec<Finding> {
    let subject = format!("{from} to {to}");
    let remedy = format!(
        "see `ip -s link` and `ethtool -S INTERFACE | grep -iE 'err|drop|discard'` on {from}, {to} and the switch"
    );
    let mut findings = Vec::new();
    let (sent, again) = (counters.tcp_segments, counters.tcp_retransmitted);
    if let Some(part) = loss(again, sent, TCP_LOSS) {
        let what = format!("{} of {sent} TCP segments were sent again", share(part));
        findings.push(Finding::repair("loss-tcp", &subject, what).with(remedy.clone()));
    }
    let (sent, lost) = (counters.rdma_packets, counters.rdma_losses);
    if let Some(part) = loss(lost, sent, RDMA_LOSS) {
        let what = format!(
            "{lost} signs of lost packets in {sent} RDMA packets ({})",
            share(part)
        );
        let remedy =
            format!("{remedy}; for RoCE: priority flow control on the switch and the cards");
        findings.push(Finding::repair("loss-rdma", &subject, what).with(remedy));
    }
    findings
}

/// Returns the part that was lost, if it is more than `limit`, of enough packets.
#[allow(clippy::cast_precision_loss, reason = "a part of a percent")]
fn loss(lost: u64, sent: u64, limit: f64) -> Option<f64> {
    let part = lost as f64 / sent.max(1) as f64;
    (sent >= MIN_PACKETS && part > limit).then_some(part)
}

/// The part of a port's rate that headers leave for bytes, and that a transfer at the limit of the port reaches.
const PORT_SHARE: f64 = 0.85;

/// The part of a processor from which on a thread is limited by it, and a host by all of its processors.
const BUSY_SHARE: f64 = 0.9;

/// The part of a busy host's processors from which on other programs are named.
const OTHERS_SHARE: f64 = 0.1;

/// The part of the processor time from which on a cipher is named as the limit: without it a stream is twice as fast.
const CIPHER_SHARE: f64 = 0.5;

/// The part of the rate of raw verbs that a stream at the limit of the link reaches.
const RAW_SHARE: f64 = 0.9;

/// The part of that rate that such a stream reaches surely, beyond the spreads of both.
const SURE_RAW_SHARE: f64 = 0.8;

/// A measured rate in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MeasuredRate {
    pub(crate) median: f64,
    /// The distance to the farthest run, as a part of the median.
    pub(crate) spread: f64,
}

/// The spread that a rate has which was measured once.
const SPREAD_OF_ONE: f64 = 0.2;

impl MeasuredRate {
    /// Returns the rate of a series of runs; none without a run.
    pub(crate) fn of(series: &Series) -> Option<Self> {
        Some(Self {
            median: series.median()?,
            spread: match series.runs.len() {
                1 => SPREAD_OF_ONE,
                _ => series.spread(),
            },
        })
    }

    /// Returns true if this rate is less than another one beyond the spreads of both.
    pub(crate) fn is_surely_less(self, other: Self) -> bool {
        self.median * (1.0 + self.spread) < other.median * (1.0 - other.spread)
    }
}

/// One end of a transfer. What was not measured is none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TransferEnd<'a> {
    pub(crate) host: &'a str,
    /// What its disk reads or writes.
    pub(crate) disk: Option<MeasuredRate>,
    /// The processors that the stream keeps busy: 1.0 is one processor.
    pub(crate) used: Option<f64>,
    /// What all programs of the host do with its processors.
    pub(crate) load: Option<ProcessorLoad>,
    /// What one thread encrypts or decrypts in a second, with the cipher of the stream.
    pub(crate) ciphers: Option<f64>,
}

/// The rates of a transfer and of its parts, in bytes per second. What was not measured is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferRates<'a> {
    /// The end that sends, and the end that receives.
    pub(crate) ends: [TransferEnd<'a>; 2],
    /// What a stream carries from memory to memory.
    pub(crate) stream: MeasuredRate,
    /// The number of threads that carry it at each end.
    pub(crate) threads: u16,
    /// What raw verbs carry; over TCP, what a socket carries.
    pub(crate) raw: Option<MeasuredRate>,
    /// The rate of the slower port or interface in Mbit/s, if it is to be believed: not of software devices.
    pub(crate) port_mbps: Option<u32>,
    /// The cipher of the stream; none if it was not encrypted.
    pub(crate) cipher: Option<Cipher>,
    /// What was found of lost packets.
    pub(crate) loss: Option<&'a str>,
    /// What was found of packets that are too large for the path.
    pub(crate) mtu: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit<'a> {
    /// Packets are lost.
    Loss(&'a str),
    /// Packets of the interfaces' size do not arrive.
    Mtu(&'a str),
    /// The processors of a host are busy with other programs.
    OtherPrograms(&'a str, ProcessorLoad),
    Disk,
    /// The port: the stream reaches this part of its rate.
    Port {
        part: f64,
        whole: f64,
    },
    /// The stream keeps all processors of a host busy, or all of its threads there.
    Processors {
        host: &'a str,
        used: f64,
        /// The number of processors, if all of them are busy.
        all: Option<u32>,
        /// The cipher, and the part of the processor time that it takes.
        cipher: Option<(Cipher, f64)>,
    },
    /// The stream carries less than the link does.
    Stream {
        raw: f64,
    },
    /// The cipher takes most of the time of a host's processors or threads.
    Encryption {
        host: &'a str,
        used: f64,
        cipher: Cipher,
        part: f64,
    },
    /// The link carries no more.
    Link {
        raw: f64,
    },
    /// The network between memory and memory; nothing else was measured.
    Network,
    /// One of two, whose rates differ by less than the runs of each.
    Unknown(&'static str, &'static str),
}

/// Returns what limits a transfer: the first thing that is found, in the order of what spoils the figures that follow.
pub(crate) fn limit<'a>(rates: &TransferRates<'a>) -> Limit<'a> {
    if let Some(what) = rates.loss {
        return Limit::Loss(what);
    }
    if let Some(what) = rates.mtu {
        return Limit::Mtu(what);
    }
    if let Some((host, load)) = busy_with_others(rates) {
        return Limit::OtherPrograms(host, load);
    }
    if let Some((_, disk)) = slowest_disk(rates) {
        if disk.is_surely_less(rates.stream) {
            return Limit::Disk;
        }
        if !rates.stream.is_surely_less(disk) {
            return Limit::Unknown("the disk", "the network");
        }
    }
    if let Some(port) = rates.port_mbps.filter(|port| *port > 0) {
        let whole = f64::from(port) * 1e6 / 8.0;
        let part = rates.stream.median / whole;
        if part >= PORT_SHARE {
            return Limit::Port { part, whole };
        }
    }
    if let Some(busy) = busy_with_stream(rates) {
        return busy;
    }
    match rates.raw.filter(|raw| raw.median > 0.0) {
        Some(raw) => of_link(rates.stream, raw),
        None => Limit::Network,
    }
}

/// Returns the host whose processors are all busy, and not with the stream alone.
fn busy_with_others<'a>(rates: &TransferRates<'a>) -> Option<(&'a str, ProcessorLoad)> {
    let others = |load: &ProcessorLoad| load.others / f64::from(load.processors.max(1));
    let loads = rates
        .ends
        .iter()
        .filter_map(|end| Some((end.host, end.load?)));
    loads
        .filter(|(_, load)| is_busy(load) && others(load) >= OTHERS_SHARE)
        .max_by(|one, other| others(&one.1).total_cmp(&others(&other.1)))
}

fn is_busy(load: &ProcessorLoad) -> bool {
    load.busy >= BUSY_SHARE * f64::from(load.processors)
}

fn slowest_disk<'a>(rates: &TransferRates<'a>) -> Option<(&'a str, MeasuredRate)> {
    let disks = rates
        .ends
        .iter()
        .filter_map(|end| Some((end.host, end.disk?)));
    disks.min_by(|one, other| one.1.median.total_cmp(&other.1.median))
}

/// Returns the limit if the stream keeps all of its threads at an end busy, or all processors there.
fn busy_with_stream<'a>(rates: &TransferRates<'a>) -> Option<Limit<'a>> {
    let busy = rates.ends.iter().filter_map(|end| Some((end, end.used?)));
    let busy = busy.filter(|(end, used)| {
        let threads = f64::from(rates.threads.max(1));
        *used >= BUSY_SHARE * threads || end.load.as_ref().is_some_and(is_busy)
    });
    let (end, used) = busy.max_by(|one, other| one.1.total_cmp(&other.1))?;
    let part = |ciphers: f64| (rates.stream.median / ciphers / used).min(1.0);
    let cipher = rates.cipher.zip(end.ciphers.map(part));
    let host = end.host;
    Some(match cipher {
        Some((cipher, part)) if part >= CIPHER_SHARE => Limit::Encryption {
            host,
            used,
            cipher,
            part,
        },
        _ => Limit::Processors {
            host,
            used,
            all: end.load.filter(is_busy).map(|load| load.processors),
            cipher,
        },
    })
}

fn of_link<'a>(stream: MeasuredRate, raw: MeasuredRate) -> Limit<'a> {
    let part = stream.median / raw.median;
    let least = part * (1.0 - stream.spread - raw.spread);
    if part < RAW_SHARE && stream.is_surely_less(raw) {
        return Limit::Stream { raw: raw.median };
    }
    if part >= RAW_SHARE && least >= SURE_RAW_SHARE {
        // Two measurements of the same link differ.
        let raw = raw.median.max(stream.median);
        return Limit::Link { raw };
    }
    Limit::Unknown("the stream", "the link")
}

/// Returns the verdict, one sentence: what limits the transfer, after the rates that show it.
pub(crate) fn verdict(rates: &TransferRates<'_>) -> String {
    let network = rate(rates.stream.median);
    let limit = limit(rates);
    match slowest_disk(rates) {
        None => format!("network {network}: {limit}"),
        Some((host, disk)) => {
            let disk = rate(disk.median);
            match limit {
                Limit::Disk => format!("disk of {host}: {disk}, network {network}: {limit}"),
                _ => format!("network {network}, disk of {host} {disk}: {limit}"),
            }
        }
    }
}

impl fmt::Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss(what) => write!(f, "lost packets are the limit, {what}"),
            Self::Mtu(what) => write!(f, "the MTU is the limit, {what}"),
            Self::OtherPrograms(host, load) => write!(
                f,
                "the processors of {host} are the limit, other programs keep {:.1} of its {} busy; measure without them",
                load.others, load.processors
            ),
            Self::Disk => f.write_str("the disk is the limit"),
            Self::Port { part, whole } => {
                write!(
                    f,
                    "the port is the limit, {} of its {}",
                    share(*part),
                    rate(*whole)
                )
            }
            Self::Processors {
                host,
                used,
                all,
                cipher,
            } => {
                let used = share(*used);
                match all {
                    Some(all) if *all > 1 => write!(
                        f,
                        "the processors of {host} are the limit, all {all} are busy (with the stream {used} of one)"
                    ),
                    _ => write!(f, "the processor of {host} is the limit ({used} of one)"),
                }?;
                match cipher {
                    Some((cipher, part)) => {
                        write!(f, ", {cipher} takes {} of its time", share(*part))
                    }
                    None => Ok(()),
                }
            }
            Self::Stream { raw } => write!(
                f,
                "the stream is the limit, the link carries {}",
                rate(*raw)
            ),
            Self::Encryption {
                host,
                used,
                cipher,
                part,
            } => write!(
                f,
                "encryption is the limit, {cipher} takes {} of the processor time of {host} ({} of one)",
                share(*part),
                share(*used)
            ),
            Self::Link { raw } => write!(f, "the link is the limit, it carries {}", rate(*raw)),
            Self::Network => f.write_str("the network is the limit"),
            Self::Unknown(one, other) => write!(
                f,
                "cannot tell whether {one} or {other} is the limit, their rates differ by less than the runs of each \
                 do; measure longer, with --time 5 --runs 9"
            ),
        }
    }
}

/// Returns the number of rails that is best, the fewest among those that are not surely slower than the fastest, and its
/// rate as a sentence. `rates` has the rate of each number, of one first.
pub(crate) fn best_rails(rates: &[(u8, MeasuredRate)]) -> Option<String> {
    let (_, one) = rates.first().filter(|_| rates.len() > 1)?;
    let fastest = rates
        .iter()
        .max_by(|a, b| a.1.median.total_cmp(&b.1.median))?;
    let mut good = rates
        .iter()
        .filter(|(_, rate)| !rate.is_surely_less(fastest.1));
    let (rails, best) = good.next()?;
    let best_rate = rate(best.median);
    Some(match rails {
        1 => format!("rails: one carries {best_rate}, and more carry no more beyond noise"),
        rails => {
            let times = best.median / one.median;
            format!(
                "rails: {rails} are best here with {best_rate}, {times:.1} times one; give --rails {rails}"
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{
        check::{Severity, tests::assert_one},
        messages::NetworkCounters,
    };

    fn pairs(rates: &[f64]) -> Vec<PairRate> {
        let pair = |(number, rate): (usize, &f64)| PairRate {
            from: "fs1".to_owned(),
            to: format!("fs{}", number + 2),
            bytes_per_second: *rate,
        };
        rates.iter().enumerate().map(pair).collect()
    }

    #[test]
    fn a_pair_below_half_of_the_median_is_slow() {
        let findings = slow_pairs(&pairs(&[3e9, 2.9e9, 1.2e8, 3.1e9]));
        assert_one(&findings, "slow-pair", Severity::Repair, "tc qdisc show");
        assert_eq!(findings[0].subject, "fs1 to fs4");
        let what = "120 MB/s is 4.1% of the median of all pairs, 3.0 GB/s";
        assert_eq!(findings[0].what, what);
        let findings = slow_pairs(&pairs(&[9.0, 2.0, 9.0, 1.0, 9.0]));
        let subjects: Vec<_> = findings.iter().map(|found| &found.subject).collect();
        assert_eq!(subjects, ["fs1 to fs5", "fs1 to fs3"]);
    }

    #[test]
    fn rates_that_are_alike_or_few_have_no_slow_pair() {
        assert_eq!(slow_pairs(&pairs(&[])), []);
        assert_eq!(slow_pairs(&pairs(&[1.0, 9.0])), []);
        assert_eq!(slow_pairs(&pairs(&[5.0, 9.0, 9.0])), []);
        assert_eq!(slow_pairs(&pairs(&[0.0, 0.0, 0.0])), []);
        assert_eq!(slow_pairs(&pairs(&[f64::NAN, 9.0, 9.0])), []);
    }

    #[test]
    fn lost_packets_are_found_if_there_are_enough() {
        let counters = |sent, again, packets, losses| NetworkCounters {
            tcp_segments: sent,
            tcp_retransmitted: again,
            rdma_packets: packets,
            rdma_losses: losses,
        };
        let lost = |counters| lossy("fs1", "fs2", &counters);
        let findings = lost(counters(100_000, 2_000, 0, 0));
        assert_one(&findings, "loss-tcp", Severity::Repair, "ethtool -S");
        assert_eq!(
            findings[0].what,
            "2.0% of 100000 TCP segments were sent again"
        );
        assert_eq!(lost(counters(100_000, 100, 0, 0)), []);
        assert_eq!(lost(counters(999, 500, 0, 0)), []);
        let findings = lost(counters(0, 0, 100_000, 50));
        assert_one(
            &findings,
            "loss-rdma",
            Severity::Repair,
            "priority flow control",
        );
        assert_eq!(lost(counters(0, 0, 100_000, 10)), []);
        assert_eq!(lost(NetworkCounters::default()), []);
    }

    fn measured(median: f64) -> MeasuredRate {
        MeasuredRate {
            median,
            spread: 0.05,
        }
    }

    fn wide(median: f64) -> MeasuredRate {
        MeasuredRate {
            median,
            spread: 0.4,
        }
    }

    fn load(processors: u32, busy: f64, others: f64) -> ProcessorLoad {
        ProcessorLoad {
            processors,
            busy,
            others,
        }
    }

    /// A stream of 2.9 GB/s from fs1 to fs2, of which nothing else is known.
    fn plain() -> TransferRates<'static> {
        let end = |host| TransferEnd {
            host,
            ..TransferEnd::default()
        };
        TransferRates {
            ends: [end("fs1"), end("fs2")],
            stream: measured(2.9e9),
            threads: 1,
            raw: None,
            port_mbps: None,
            cipher: None,
            loss: None,
            mtu: None,
        }
    }

    fn kind(limit: Limit<'_>) -> &'static str {
        match limit {
            Limit::Loss(_) => "loss",
            Limit::Mtu(_) => "MTU",
            Limit::OtherPrograms(..) => "other programs",
            Limit::Disk => "disk",
            Limit::Port { .. } => "port",
            Limit::Processors { .. } => "processors",
            Limit::Stream { .. } => "stream",
            Limit::Encryption { .. } => "encryption",
            Limit::Link { .. } => "link",
            Limit::Network => "network",
            Limit::Unknown("the disk", _) => "disk or network",
            Limit::Unknown(..) => "stream or link",
        }
    }

    type Repair = fn(&mut TransferRates<'static>);

    #[test]
    fn the_first_finding_is_the_verdict() {
        // Everything is wrong at once, and is repaired step by step.
        let mut rates = plain();
        rates.loss = Some("2.0% of 100000 TCP segments were sent again");
        rates.mtu = Some("packets of 9000 bytes do not arrive");
        rates.ends[1].load = Some(load(2, 2.0, 1.5));
        rates.ends[0].disk = Some(measured(5e8));
        rates.ends[1].used = Some(0.99);
        rates.ends[1].ciphers = Some(4e9);
        rates.cipher = Some(Cipher::Aes256Gcm);
        rates.raw = Some(measured(9e9));
        let steps: [(&str, Repair); 8] = [
            ("loss", |rates| rates.loss = None),
            ("MTU", |rates| rates.mtu = None),
            ("other programs", |rates| {
                rates.ends[1].load = Some(load(2, 1.0, 0.01));
            }),
            ("disk", |rates| rates.ends[0].disk = Some(measured(5e9))),
            ("encryption", |rates| rates.ends[1].ciphers = Some(2e10)),
            ("processors", |rates| rates.ends[1].used = Some(0.5)),
            ("stream", |rates| rates.raw = Some(measured(2.8e9))),
            ("link", |rates| rates.raw = None),
        ];
        for (expected, repair) in steps {
            assert_eq!(kind(limit(&rates)), expected);
            repair(&mut rates);
        }
        assert_eq!(kind(limit(&rates)), "network");
    }

    #[test]
    fn what_the_runs_do_not_tell_apart_is_not_told() {
        for (stream, raw, expected) in [
            (measured(2.9e9), measured(3.0e9), "link"),
            (measured(2.9e9), measured(2.0e9), "link"),
            (measured(2.9e9), measured(9.0e9), "stream"),
            (measured(2.6e9), measured(3.0e9), "stream"),
            (wide(2.9e9), measured(9.0e9), "stream"),
            (wide(2.9e9), wide(4.0e9), "stream or link"),
            (wide(2.9e9), measured(3.0e9), "stream or link"),
            (measured(2.9e9), wide(3.0e9), "stream or link"),
            (measured(2.9e9), measured(0.0), "network"),
        ] {
            let rates = TransferRates {
                stream,
                raw: Some(raw),
                ..plain()
            };
            assert_eq!(kind(limit(&rates)), expected, "{stream:?} {raw:?}");
        }
        for (disk, expected) in [
            (measured(1e9), "disk"),
            (measured(2.8e9), "disk or network"),
            (measured(3.0e9), "disk or network"),
            (wide(2.4e9), "disk or network"),
            (measured(4e9), "network"),
        ] {
            let mut rates = plain();
            rates.ends[1].disk = Some(disk);
            assert_eq!(kind(limit(&rates)), expected, "{disk:?}");
        }
    }

    #[test]
    fn processors_are_the_limit_where_all_threads_or_all_processors_are_busy() {
        let of = |threads, used, load| {
            let mut rates = plain();
            rates.threads = threads;
            rates.ends[0].used = Some(0.2);
            rates.ends[1].used = Some(used);
            rates.ends[1].load = load;
            kind(limit(&rates))
        };
        for (threads, used, load, expected) in [
            (1, 0.97, None, "processors"),
            (1, 0.5, None, "network"),
            // Four threads that are a quarter busy are no limit, unless they have all processors.
            (4, 1.0, Some(load(16, 1.1, 0.0)), "network"),
            (4, 3.9, Some(load(16, 4.0, 0.0)), "processors"),
            (4, 1.8, Some(load(2, 1.95, 0.1)), "processors"),
            (4, 0.9, Some(load(2, 1.95, 0.9)), "other programs"),
            (1, 0.4, Some(load(2, 1.2, 0.8)), "network"),
        ] {
            assert_eq!(
                of(threads, used, load),
                expected,
                "{threads} {used} {load:?}"
            );
        }
    }

    #[test]
    fn a_verdict_is_a_sentence_with_the_rates_that_show_it() {
        let said = |change: &dyn Fn(&mut TransferRates<'static>)| {
            let mut rates = plain();
            change(&mut rates);
            verdict(&rates)
        };
        assert_eq!(said(&|_| {}), "network 2.9 GB/s: the network is the limit");
        assert_eq!(
            said(&|rates| rates.ends[1].load = Some(load(2, 2.0, 1.52))),
            "network 2.9 GB/s: the processors of fs2 are the limit, other programs keep 1.5 of its 2 busy; measure without them"
        );
        assert_eq!(
            said(&|rates| rates.ends[1].disk = Some(measured(1.1e9))),
            "disk of fs2: 1.1 GB/s, network 2.9 GB/s: the disk is the limit"
        );
        assert_eq!(
            said(&|rates| rates.ends[0].disk = Some(measured(5e9))),
            "network 2.9 GB/s, disk of fs1 5.0 GB/s: the network is the limit"
        );
        assert_eq!(
            said(&|rates| rates.port_mbps = Some(25_000)),
            "network 2.9 GB/s: the port is the limit, 93% of its 3.1 GB/s"
        );
        assert_eq!(
            said(&|rates| rates.ends[1].used = Some(0.97)),
            "network 2.9 GB/s: the processor of fs2 is the limit (97% of one)"
        );
        let encrypted = |rates: &mut TransferRates<'static>| {
            rates.cipher = Some(Cipher::ChaCha20Poly1305);
            rates.ends[0].used = Some(1.0);
            rates.ends[0].ciphers = Some(4e9);
        };
        assert_eq!(
            said(&encrypted),
            "network 2.9 GB/s: encryption is the limit, ChaCha20-Poly1305 takes 72% of the processor time of fs1 (100% of one)"
        );
        assert_eq!(
            said(&|rates| {
                encrypted(rates);
                rates.ends[0].ciphers = Some(29e9);
            }),
            "network 2.9 GB/s: the processor of fs1 is the limit (100% of one), ChaCha20-Poly1305 takes 10% of its time"
        );
        assert_eq!(
            said(&|rates| {
                rates.ends[0].used = Some(1.8);
                rates.ends[0].load = Some(load(2, 1.95, 0.1));
            }),
            "network 2.9 GB/s: the processors of fs1 are the limit, all 2 are busy (with the stream 180% of one)"
        );
        assert_eq!(
            said(&|rates| rates.raw = Some(measured(9e9))),
            "network 2.9 GB/s: the stream is the limit, the link carries 9.0 GB/s"
        );
        assert_eq!(
            said(&|rates| rates.raw = Some(measured(2e9))),
            "network 2.9 GB/s: the link is the limit, it carries 2.9 GB/s"
        );
        assert_eq!(
            said(&|rates| rates.raw = Some(wide(3e9))),
            "network 2.9 GB/s: cannot tell whether the stream or the link is the limit, their rates differ by less than \
             the runs of each do; measure longer, with --time 5 --runs 9"
        );
    }

    #[test]
    fn the_fewest_rails_that_are_as_fast_as_any_are_the_best() {
        let said = |rates: &[(u8, f64)]| {
            let rates = rates.iter().map(|&(rails, rate)| (rails, measured(rate)));
            best_rails(&rates.collect::<Vec<_>>()).unwrap_or_default()
        };
        assert_eq!(said(&[(1, 2e9)]), "");
        assert_eq!(
            said(&[(1, 2e9), (2, 3.9e9), (4, 7e9), (8, 7.2e9)]),
            "rails: 4 are best here with 7.0 GB/s, 3.5 times one; give --rails 4"
        );
        assert_eq!(
            said(&[(1, 2e9), (2, 2.1e9)]),
            "rails: one carries 2.0 GB/s, and more carry no more beyond noise"
        );
        assert_eq!(
            said(&[(1, 2e9), (2, 1.5e9)]),
            "rails: one carries 2.0 GB/s, and more carry no more beyond noise"
        );
    }
}
