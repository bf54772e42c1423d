//! Measured rates and counters: slow pairs of hosts, lost packets. Pure, no I/O.

use super::{Finding, rate, share};
use crate::{
    Cipher,
    perf::{messages::NetworkCounters, report::series::median},
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

/// The rate of a pair of hosts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PairRate {
    /// The name of the end that sends.
    pub(crate) from: String,
    /// The name of the end that receives.
    pub(crate) to: String,
    /// The bytes per second.
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

/// The part of a processor from which on a transfer is limited by it.
const BUSY_SHARE: f64 = 0.9;

/// The part of the processor time from which on a cipher is named as the limit: without it a stream is twice as fast.
const CIPHER_SHARE: f64 = 0.5;

/// The part of the rate of raw verbs that a stream at the limit of the link reaches.
const RAW_SHARE: f64 = 0.9;

/// The rates of a transfer and of its parts, in bytes per second. What was not measured is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferRates<'a> {
    /// The name of the end that sends.
    pub(crate) source: &'a str,
    /// The name of the end that receives.
    pub(crate) sink: &'a str,
    /// What a stream carries from memory to memory.
    pub(crate) stream: f64,
    /// What raw verbs carry; over TCP, what a socket carries.
    pub(crate) raw: Option<f64>,
    /// The rate of the slower port or interface in Mbit/s, if it is to be believed: not of software devices.
    pub(crate) port_mbps: Option<u32>,
    /// What the source reads.
    pub(crate) source_read: Option<f64>,
    /// What the sink writes.
    pub(crate) sink_write: Option<f64>,
    /// The processors that the end that sends keeps busy: 1.0 is one processor.
    pub(crate) source_processors: Option<f64>,
    /// The processors that the end that receives keeps busy.
    pub(crate) sink_processors: Option<f64>,
    /// The cipher of the stream; none if it was not encrypted.
    pub(crate) cipher: Option<Cipher>,
    /// What one thread of the end that sends encrypts.
    pub(crate) source_encrypts: Option<f64>,
    /// What one thread of the end that receives decrypts.
    pub(crate) sink_decrypts: Option<f64>,
}

/// Returns the verdict, one sentence: what of all parts is the slowest, and how it compares with the others.
pub(crate) fn limit(rates: &TransferRates<'_>) -> String {
    let source = rates
        .source_read
        .map(|rate| (format!("disk of {}", rates.source), rate));
    let sink = rates
        .sink_write
        .map(|rate| (format!("disk of {}", rates.sink), rate));
    let slowest = [source, sink]
        .into_iter()
        .flatten()
        .min_by(|a, b| a.1.total_cmp(&b.1));
    match slowest {
        Some((disk, read)) if read < rates.stream => format!(
            "{disk}: {}, network {}: the disk is the limit",
            rate(read),
            rate(rates.stream)
        ),
        Some((disk, read)) => format!(
            "network {}, {disk} {}: {}",
            rate(rates.stream),
            rate(read),
            network(rates)
        ),
        None => format!("network {}: {}", rate(rates.stream), network(rates)),
    }
}

/// Returns what limits the network.
fn network(rates: &TransferRates<'_>) -> String {
    if let Some(port) = rates.port_mbps.filter(|port| *port > 0) {
        let whole = f64::from(port) * 1e6 / 8.0;
        if rates.stream >= PORT_SHARE * whole {
            let part = share(rates.stream / whole);
            return format!("the port is the limit, {part} of its {}", rate(whole));
        }
    }
    let busy = [
        (rates.source, rates.source_processors, rates.source_encrypts),
        (rates.sink, rates.sink_processors, rates.sink_decrypts),
    ];
    let busy = busy
        .into_iter()
        .filter_map(|(host, used, cipher)| Some((host, used?, cipher)))
        .filter(|(_, used, _)| *used >= BUSY_SHARE)
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((host, used, of_cipher)) = busy {
        let encrypting = of_cipher.map(|of_cipher| rates.stream / of_cipher / used);
        return busy_processor(host, used, rates.cipher.zip(encrypting));
    }
    match rates.raw.filter(|raw| *raw > 0.0) {
        Some(raw) if rates.stream < RAW_SHARE * raw => format!(
            "the stream is the limit, {} of the {} that the link carries",
            share(rates.stream / raw),
            rate(raw)
        ),
        // Two measurements of the same link differ.
        Some(raw) => format!(
            "the link is the limit, it carries {}",
            rate(raw.max(rates.stream))
        ),
        None => "the network is the limit".to_owned(),
    }
}

/// Returns that the processor of a host is the limit, or the cipher that takes this part of its time.
fn busy_processor(host: &str, used: f64, encrypting: Option<(Cipher, f64)>) -> String {
    let used = share(used);
    match encrypting {
        Some((cipher, part)) if part >= CIPHER_SHARE => format!(
            "encryption is the limit, {cipher} takes {} of the processor time of {host} ({used} of one)",
            share(part.min(1.0))
        ),
        Some((cipher, part)) => format!(
            "the processor of {host} is the limit ({used} of one), {cipher} takes {} of its time",
            share(part)
        ),
        None => format!("the processor of {host} is the limit ({used} of one)"),
    }
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

    const MEASURED: TransferRates<'_> = TransferRates {
        source: "fs1",
        sink: "fs2",
        stream: 2.9e9,
        raw: None,
        port_mbps: None,
        source_read: None,
        sink_write: None,
        source_processors: None,
        sink_processors: None,
        cipher: None,
        source_encrypts: None,
        sink_decrypts: None,
    };

    #[test]
    fn encryption_is_the_limit_where_it_takes_most_of_a_busy_processor() {
        let encrypted = TransferRates {
            cipher: Some(Cipher::ChaCha20Poly1305),
            source_processors: Some(1.0),
            sink_processors: Some(0.95),
            source_encrypts: Some(4.0e9),
            sink_decrypts: Some(3.0e9),
            ..MEASURED
        };
        let verdict = "network 2.9 GB/s: encryption is the limit, ChaCha20-Poly1305 takes 72% of the processor time \
                       of fs1 (100% of one)";
        assert_eq!(limit(&encrypted), verdict);
        // Of four streams, four processors are busy.
        let fast = TransferRates {
            cipher: Some(Cipher::Aes256Gcm),
            sink_processors: Some(3.9),
            sink_decrypts: Some(7.5e9),
            ..encrypted
        };
        let verdict = "network 2.9 GB/s: the processor of fs2 is the limit (390% of one), AES-256-GCM takes 9.9% of \
                       its time";
        assert_eq!(limit(&fast), verdict);
        let idle = TransferRates {
            source_processors: Some(0.5),
            sink_processors: Some(0.5),
            ..encrypted
        };
        assert_eq!(limit(&idle), "network 2.9 GB/s: the network is the limit");
    }

    #[test]
    fn the_slowest_disk_is_the_limit() {
        let rates = TransferRates {
            source_read: Some(2.0e9),
            sink_write: Some(1.1e9),
            ..MEASURED
        };
        let verdict = "disk of fs2: 1.1 GB/s, network 2.9 GB/s: the disk is the limit";
        assert_eq!(limit(&rates), verdict);
        let rates = TransferRates {
            source_read: Some(0.5e9),
            ..rates
        };
        assert!(limit(&rates).starts_with("disk of fs1: 500 MB/s"));
    }

    #[test]
    fn a_network_that_is_slower_than_the_disks_is_the_limit() {
        let rates = TransferRates {
            source_read: Some(5.0e9),
            ..MEASURED
        };
        let verdict = "network 2.9 GB/s, disk of fs1 5.0 GB/s: the network is the limit";
        assert_eq!(limit(&rates), verdict);
        assert_eq!(
            limit(&MEASURED),
            "network 2.9 GB/s: the network is the limit"
        );
    }

    #[test]
    fn what_limits_a_network_is_its_port_a_processor_the_link_or_the_stream() {
        let port = TransferRates {
            port_mbps: Some(25_000),
            sink_processors: Some(1.0),
            ..MEASURED
        };
        let verdict = "network 2.9 GB/s: the port is the limit, 93% of its 3.1 GB/s";
        assert_eq!(limit(&port), verdict);
        let processor = TransferRates {
            port_mbps: Some(100_000),
            source_processors: Some(0.5),
            sink_processors: Some(0.97),
            raw: Some(9e9),
            ..MEASURED
        };
        let verdict = "network 2.9 GB/s: the processor of fs2 is the limit (97% of one)";
        assert_eq!(limit(&processor), verdict);
        let stream = TransferRates {
            sink_processors: None,
            ..processor
        };
        let verdict =
            "network 2.9 GB/s: the stream is the limit, 32% of the 9.0 GB/s that the link carries";
        assert_eq!(limit(&stream), verdict);
        let link = TransferRates {
            raw: Some(3.0e9),
            ..MEASURED
        };
        let verdict = "network 2.9 GB/s: the link is the limit, it carries 3.0 GB/s";
        assert_eq!(limit(&link), verdict);
        let faster = TransferRates {
            raw: Some(2.0e9),
            ..MEASURED
        };
        let verdict = "network 2.9 GB/s: the link is the limit, it carries 2.9 GB/s";
        assert_eq!(limit(&faster), verdict);
        let nothing = TransferRates {
            stream: 0.0,
            raw: Some(0.0),
            port_mbps: Some(0),
            ..MEASURED
        };
        assert_eq!(limit(&nothing), "network 0 B/s: the network is the limit");
    }
}
