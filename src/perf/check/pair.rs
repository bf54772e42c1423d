//! What is wrong with a pair of hosts. Pure, no I/O.

use super::{Finding, Severity, open_tcp, set_mtu};
use crate::{
    perf::{
        check,
        messages::{HostFacts, PathResult, PortPairProof, TaskFault},
    },
    ssh::quote::word,
};

/// The difference of two clocks from which on logs and certificates are affected, in milliseconds: a minute.
const CLOCK_LIMIT_MS: u64 = 60_000;

/// Returns what is wrong with a pair of hosts, the worst first, apart from what [`check_host`](super::check_host) finds
/// at each of them. The user `insists` on RDMA if no other transport is allowed.
pub(crate) fn check_pair(pair: &PairFacts<'_>, insists: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(versions(pair));
    findings.extend(tcp(pair));
    findings.extend(check_path(pair));
    findings.extend(check_ports(pair, insists));
    findings.extend(clocks(pair));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn versions(pair: &PairFacts<'_>) -> Option<Finding> {
    let (dialer, listener) = (pair.dialer, pair.listener);
    let versions = (&dialer.facts.version, &listener.facts.version);
    if versions.0 == versions.1 {
        return None;
    }
    let what = format!(
        "{} has rdpipe {}, and {} has {}",
        dialer.name, versions.0, listener.name, versions.1
    );
    let finding = Finding::repair("version", &pair.subject(), what);
    Some(finding.with("install the same version on both: `scripts/install`"))
}

/// Returns the directions in which no TCP connection works.
fn tcp(pair: &PairFacts<'_>) -> Vec<Finding> {
    let (dialer, listener) = (pair.dialer, pair.listener);
    let forward = (dialer, listener, pair.reached, pair.reached_back);
    let backward = (listener, dialer, pair.reached_back, pair.reached);
    let way = if pair.goes_through_ssh() {
        ", so rdpipe, rdcp and rdforward send the data between them through ssh, which is slower"
    } else {
        ""
    };
    let blocked = [forward, backward].into_iter();
    let findings = blocked.filter_map(|(from, to, result, other)| {
        let fault = result?.err()?;
        Some(blocked_tcp(from, to, fault, (other, way), pair.ports))
    });
    findings.collect()
}

/// Describes a direction without TCP. `other` is the result of the other direction, `way` what is used instead of both.
fn blocked_tcp(
    from: PairEnd<'_>,
    to: PairEnd<'_>,
    fault: &TaskFault,
    (other, way): (Option<Result<&str, &TaskFault>>, &str),
    ports: Option<(u16, u16)>,
) -> Finding {
    let subject = subject(from, to);
    if !fault.is_unreachable {
        return Finding::repair("reach", &subject, &fault.text);
    }
    let rest = match other {
        Some(Ok(_)) => format!("; connections from {} to {} work", to.name, from.name),
        Some(Err(_)) => format!("; nor does the other direction work{way}"),
        None => String::new(),
    };
    let (from, to) = (from.name, to.name);
    let what = format!(
        "no TCP connection from {from} to {to} works: {}{rest}",
        fault.text
    );
    Finding::repair("firewall-tcp", &subject, what).with(open_tcp(to, ports))
}

fn clocks(pair: &PairFacts<'_>) -> Option<Finding> {
    let difference = pair.clock_difference_ms?;
    if difference.unsigned_abs() <= CLOCK_LIMIT_MS {
        return None;
    }
    let (ahead, behind) = if difference > 0 {
        (pair.listener.name, pair.dialer.name)
    } else {
        (pair.dialer.name, pair.listener.name)
    };
    let seconds = difference.unsigned_abs() / 1000;
    let what = format!("the clock of {ahead} is {seconds} s ahead of that of {behind}");
    let finding = Finding::note("clock", &pair.subject(), what);
    Some(finding.with("on both: `sudo timedatectl set-ntp true`, or `sudo chronyc makestep`"))
}

/// One host of a pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairEnd<'a> {
    /// The name of the host as the user gave it: `fs1`.
    pub(crate) name: &'a str,
    /// What its agent has found out.
    pub(crate) facts: &'a HostFacts,
}

/// What is known about a pair of hosts. Each task has a result, or none if it was not carried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairFacts<'a> {
    pub(crate) dialer: PairEnd<'a>,
    /// The end that listens.
    pub(crate) listener: PairEnd<'a>,
    /// The address at which the end that dials has reached the end that listens, or why it has not.
    pub(crate) reached: Option<Result<&'a str, &'a TaskFault>>,
    /// The address at which the end that listens has reached the end that dials, or why it has not.
    pub(crate) reached_back: Option<Result<&'a str, &'a TaskFault>>,
    /// The packets from the end that dials to the end that listens.
    pub(crate) path: Option<&'a PathResult>,
    /// The packets from the end that listens to the end that dials.
    pub(crate) path_back: Option<&'a PathResult>,
    /// The pairs of RDMA ports, the best first, or why none was tried.
    pub(crate) proofs: Option<Result<&'a [PortPairProof], &'a TaskFault>>,
    /// The first and the last port to listen on, if the user gave them.
    pub(crate) ports: Option<(u16, u16)>,
    /// How far the clock of the end that listens is ahead, in milliseconds.
    pub(crate) clock_difference_ms: Option<i64>,
    /// Whether the data of programs goes through ssh where no TCP connection works.
    pub(crate) may_go_through_ssh: bool,
}

impl PairFacts<'_> {
    /// Returns true if the data between the two hosts goes through ssh: no TCP connection works in either direction.
    pub(crate) fn goes_through_ssh(&self) -> bool {
        let is_blocked = |reached: Option<Result<&str, &TaskFault>>| matches!(reached, Some(Err(fault)) if fault.is_unreachable);
        self.may_go_through_ssh && is_blocked(self.reached) && is_blocked(self.reached_back)
    }

    /// Returns the name of the pair: `fs1 to fs2`.
    pub(super) fn subject(&self) -> String {
        subject(self.dialer, self.listener)
    }
}

/// Returns the name of a direction: `fs1 to fs2`.
pub(super) fn subject(from: PairEnd<'_>, to: PairEnd<'_>) -> String {
    format!("{} to {}", from.name, to.name)
}

/// Returns true if a stream between the two hosts uses RDMA when the user does not choose, and the reason: the ports,
/// or why it is TCP. A host that has measured nothing over its ports is expected to use them.
pub(crate) fn automatic_choice(pair: &PairFacts<'_>) -> (bool, String) {
    for end in [pair.dialer, pair.listener] {
        if let Some(reason) = no_rdma(end) {
            return (false, format!("{}: {reason}", end.name));
        }
    }
    let proofs = match pair.proofs {
        Some(Ok(proofs)) => proofs,
        Some(Err(fault)) => return (false, fault.text.clone()),
        None => {
            let text = "both hosts have RDMA, and no message over it was tried";
            return (true, text.to_owned());
        }
    };
    // The message with which a stream proves its ports is a short one.
    if let Some(proof) = proofs.iter().find(|proof| proof.short.is_ok()) {
        let (dialer, listener) = (&proof.dialer_text, &proof.listener_text);
        let text = format!("{dialer} to {listener}, MTU {}", proof.mtu);
        return (true, text);
    }
    let shared = proofs.iter().find(|proof| proof.shares_network);
    let reason = shared.and_then(|proof| proof.short.as_ref().err());
    let text = match reason {
        Some(reason) => format!("no message crosses the hosts' RDMA ports: {reason}"),
        None => "the hosts' RDMA networks differ".to_owned(),
    };
    (false, text)
}

/// Returns the reason why a host cannot use RDMA.
fn no_rdma(end: PairEnd<'_>) -> Option<&str> {
    if !end.facts.has_rdma_build {
        return Some("this rdpipe was built without RDMA");
    }
    end.facts.no_rdma.as_deref()
}

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

/// The headers of a packet of RoCE v2 over IPv4 that carries part of an RDMA WRITE, in bytes: IP 20, UDP 8, BTH 12,
/// RETH 16, immediate data 4, ICRC 4.
const ROCE_V2_HEADERS: u32 = 64;

/// The MTU that every Ethernet has, in bytes.
const ETHERNET_MTU: u32 = 1500;

/// Returns what is wrong with the RDMA ports of two hosts that have some. What one host lacks is found at that host.
pub(super) fn check_ports(pair: &PairFacts<'_>, insists: bool) -> Vec<Finding> {
    let have_rdma = [pair.dialer, pair.listener]
        .iter()
        .all(|end| end.facts.has_rdma_build && end.facts.no_rdma.is_none());
    match pair.proofs {
        Some(Err(fault)) if have_rdma => {
            let what = format!("no message over RDMA was tried: {}", fault.text);
            vec![Finding::repair("rdma-proof", &pair.subject(), what)]
        }
        Some(Ok(proofs)) if have_rdma => proved(pair, proofs, insists),
        _ => Vec::new(),
    }
}

fn proved(pair: &PairFacts<'_>, proofs: &[PortPairProof], insists: bool) -> Vec<Finding> {
    let any_works = proofs.iter().any(PortPairProof::works);
    let mut findings: Vec<Finding> = Vec::new();
    // A pair of ports that shares no network is not expected to work.
    let expected = proofs
        .iter()
        .filter(|proof| proof.shares_network || proof.short.is_ok());
    for proof in expected.filter(|proof| !proof.works()) {
        let finding = broken(pair, proof);
        // `auto` takes the first pair over which a short message travels.
        let is_chosen = proof.short.is_ok();
        let finding = finding.serious_if(is_chosen || !any_works);
        let is_known =
            |known: &Finding| known.code == finding.code && known.remedy == finding.remedy;
        if !findings.iter().any(is_known) {
            findings.push(finding);
        }
    }
    let shares = proofs.iter().any(|proof| proof.shares_network);
    if !shares && !any_works && findings.is_empty() {
        findings.push(apart(pair, proofs, insists));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity == Severity::Repair));
    findings
}

/// Describes a pair of ports of one network over which not all messages travel.
fn broken(pair: &PairFacts<'_>, proof: &PortPairProof) -> Finding {
    let (dialer, listener) = (pair.dialer.name, pair.listener.name);
    let ports = format!(
        "{} of {dialer} and {} of {listener}",
        proof.dialer_text, proof.listener_text
    );
    let subject = pair.subject();
    match (&proof.short, &proof.long) {
        (Ok(_), Err(reason)) => {
            let what = format!(
                "short messages over RDMA cross {ports}, and packets of {} bytes do not ({reason}): the MTU of the path is smaller",
                proof.mtu
            );
            Finding::repair("mtu-path", &subject, what).with(smaller_packets(pair, proof))
        }
        (Err(reason), _) if proof.is_roce_v2 => {
            let what = format!(
                "no message over RDMA crosses {ports} ({reason}): a firewall or a switch drops RoCE v2, which is UDP port 4791"
            );
            let remedy = check::open_roce(dialer, listener);
            Finding::repair("firewall-udp", &subject, what).with(remedy)
        }
        (Err(reason), _) => {
            let what = format!("no message over RDMA crosses {ports} ({reason})");
            let device = word(&proof.listener.device);
            let remedy = format!(
                "on {listener}: `sudo ibping -S -C {device}`; on {dialer}: `sudo ibping -G GUID`, with the port GUID that `ibstat` shows on {listener}"
            );
            Finding::repair("rdma-proof", &subject, what).with(remedy)
        }
        (Ok(_), Ok(_)) => Finding::note("rdma-proof", &subject, format!("{ports} work")),
    }
}

/// Returns the remedy for RDMA packets that are larger than the path.
fn smaller_packets(pair: &PairFacts<'_>, proof: &PortPairProof) -> String {
    let mtu = path_mtu(pair, proof);
    let ends = [
        (pair.dialer, &proof.dialer_text),
        (pair.listener, &proof.listener_text),
    ];
    let commands: Option<Vec<String>> = ends
        .iter()
        .map(|(end, text)| {
            let command = check::set_mtu(netdev(text)?, mtu);
            Some(format!("on {}: {command}", end.name))
        })
        .collect();
    match commands {
        Some(commands) => format!(
            "{}; or set the switches between them to an MTU of {} or more",
            commands.join(", and "),
            u32::from(proof.mtu) + ROCE_V2_HEADERS
        ),
        None => format!(
            "set the MTU of the fabric to {} in the configuration of its subnet manager (partitions.conf)",
            proof.mtu
        ),
    }
}

/// Returns the MTU that the path of two ports has, as far as it is known: that of the measured path, if the packets
/// left through the same interface.
fn path_mtu(pair: &PairFacts<'_>, proof: &PortPairProof) -> u32 {
    let measured = |path: Option<&PathResult>, text: &str| {
        let path = path?;
        let is_same = path.netdev.is_some() && path.netdev.as_deref() == netdev(text);
        largest_arrived(path).filter(|_| is_same)
    };
    let forward = measured(pair.path, &proof.dialer_text);
    let backward = measured(pair.path_back, &proof.listener_text);
    let known = [forward, backward].into_iter().flatten().min();
    let packet = u32::from(proof.mtu) + ROCE_V2_HEADERS;
    known
        .filter(|known| *known < packet)
        .unwrap_or(ETHERNET_MTU)
}

/// Returns the interface in the description of a port: `eth0` of `rxe0 port 1, GID 1 (RoCE v2, 10.1.0.5 on eth0)`.
fn netdev(port: &str) -> Option<&str> {
    let (_, after) = port.rsplit_once(" on ")?;
    after.split(')').next().filter(|name| !name.is_empty())
}

/// Describes hosts whose RDMA ports are in different networks.
fn apart(pair: &PairFacts<'_>, proofs: &[PortPairProof], insists: bool) -> Finding {
    let (dialer, listener) = (pair.dialer, pair.listener);
    let ports = match proofs.first() {
        Some(proof) => (proof.dialer_text.clone(), proof.listener_text.clone()),
        None => (first_port(dialer.facts), first_port(listener.facts)),
    };
    let what = format!(
        "the hosts' RDMA networks differ: {} on {}, and {} on {}",
        ports.0, dialer.name, ports.1, listener.name
    );
    let interface = word(netdev(&ports.1).unwrap_or("INTERFACE"));
    let remedy = format!(
        "put a port of each into one network; for example on {}: `sudo ip address add ADDRESS/PREFIX dev {interface}`, with an \
         address of the network of {}",
        listener.name, dialer.name
    );
    let is_hardware = [dialer, listener]
        .iter()
        .all(|end| end.facts.devices.iter().any(|device| !device.is_software));
    let finding = Finding::repair("roce-network", &pair.subject(), what).with(remedy);
    finding.serious_if(insists || is_hardware || !proofs.is_empty())
}

/// Returns the first address of a host's RDMA ports that can be used.
fn first_port(facts: &HostFacts) -> String {
    let ports = facts.devices.iter().flat_map(|device| {
        let usable = device.ports.iter().filter(|port| port.fault.is_none());
        usable.map(move |port| (device, port))
    });
    let mut texts = ports.filter_map(|(device, port)| {
        let gid = port.gids.first()?;
        Some(format!("{} port {}, {gid}", device.name, port.number))
    });
    texts.next().unwrap_or_else(|| "unknown ports".to_owned())
}
