//! Slow pairs, lost packets, and what limits a transfer.

use super::{
    super::{PairRate, Severity, TransferRates, limit, lossy, slow_pairs},
    assert_one,
};
use crate::perf::messages::NetworkCounters;

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
};

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
