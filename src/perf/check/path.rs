//! The sizes of packets that arrive at the other end. Pure, no I/O.

use super::{
    Finding,
    pair_facts::{PairEnd, PairFacts, subject},
    remedies::set_mtu,
};
use crate::perf::messages::PathResult;

/// The largest packet that IP has, in bytes: a larger MTU is no use.
const MAX_PACKET_BYTES: u32 = 65_535;

/// One direction in which packets as large as the MTU of the interface do not arrive.
struct NarrowPath<'a> {
    from: PairEnd<'a>,
    to: PairEnd<'a>,
    netdev: Option<&'a str>,
    mtu: u32,
    largest: u32,
}

/// Returns what is wrong with the path between two hosts.
pub(super) fn check_path(pair: &PairFacts<'_>) -> Vec<Finding> {
    let (dialer, listener) = (pair.dialer, pair.listener);
    let forward = (dialer, listener, pair.path);
    let backward = (listener, dialer, pair.path_back);
    let directions = [forward, backward];
    let mut findings = Vec::new();
    findings.extend(directions.iter().find_map(|(from, to, path)| {
        let path = (*path)?;
        let is_silent = !path.probes.is_empty() && largest_arrived(path).is_none();
        is_silent.then(|| silent(*from, *to))
    }));
    let narrow = directions
        .iter()
        .filter_map(|(from, to, path)| narrow(*from, *to, (*path)?));
    findings.extend(mismatch(pair, &narrow.collect::<Vec<_>>()));
    findings
}

/// Returns the largest packet that has arrived, in bytes.
pub(super) fn largest_arrived(path: &PathResult) -> Option<u32> {
    let arrived = path.probes.iter().filter(|probe| probe.arrived > 0);
    arrived.map(|probe| probe.bytes).max()
}

/// Describes a direction in which no UDP packet arrives. That does no harm by itself: RoCE has a port of its own.
fn silent(from: PairEnd<'_>, to: PairEnd<'_>) -> Finding {
    let subject = subject(from, to);
    let what = format!(
        "no UDP packet from {} arrives at {}: a firewall drops them, and the largest packet of the path is not known",
        from.name, to.name
    );
    Finding::note("path-unknown", &subject, what)
}

fn narrow<'a>(from: PairEnd<'a>, to: PairEnd<'a>, path: &'a PathResult) -> Option<NarrowPath<'a>> {
    let (largest, mtu) = (largest_arrived(path)?, path.mtu?.min(MAX_PACKET_BYTES));
    let netdev = path.netdev.as_deref();
    // Larger packets have to be lost, and not only untried.
    let are_lost = path
        .probes
        .iter()
        .any(|probe| probe.bytes > largest && probe.bytes <= mtu && probe.sent > 0);
    (are_lost && largest < mtu).then_some(NarrowPath {
        from,
        to,
        netdev,
        mtu,
        largest,
    })
}

/// Describes an MTU that does not match the path, for both directions together.
fn mismatch(pair: &PairFacts<'_>, narrow: &[NarrowPath<'_>]) -> Option<Finding> {
    let first = narrow.iter().min_by_key(|narrow| narrow.largest)?;
    let (from, to) = (first.from.name, first.to.name);
    let netdev = first.netdev.unwrap_or("its interface");
    let what = format!(
        "packets of more than {} bytes from {from} do not arrive at {to}, although the MTU of {netdev} on {from} is {}",
        first.largest, first.mtu
    );
    let ends = [(pair.dialer, pair.path), (pair.listener, pair.path_back)];
    let mtu_of = |path: Option<&PathResult>| path.and_then(|path| path.mtu);
    // An interface can take a few bytes more than its MTU, and the MTU of both ends has to be the same.
    let mtus = ends.iter().filter_map(|(_, path)| mtu_of(*path));
    let right = mtus.fold(first.largest, u32::min);
    let wrong = ends.iter().filter(|(_, path)| mtu_of(*path) != Some(right));
    let commands = wrong.map(|(end, path)| {
        let netdev = path.and_then(|path| path.netdev.as_deref());
        let netdev = netdev.unwrap_or("INTERFACE");
        format!("on {}: {}", end.name, set_mtu(netdev, right))
    });
    let commands: Vec<String> = commands.collect();
    let remedy = format!(
        "{}; or set the switches between them to an MTU of {}",
        commands.join(", and "),
        first.mtu
    );
    let finding = Finding::repair("mtu-path", &format!("{from} to {to}"), what);
    Some(finding.with(remedy))
}
