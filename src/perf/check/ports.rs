//! The proofs of pairs of RDMA ports. Pure, no I/O.

use super::{Finding, Severity, pair_facts::PairFacts, path::largest_arrived, remedies};
use crate::perf::messages::{HostFacts, PathResult, PortPairProof};

/// The headers of a packet of RoCE v2 over IPv4 that carries part of an RDMA WRITE, in bytes: IP 20, UDP 8, BTH 12, RETH
/// 16, immediate data 4, ICRC 4.
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
            let remedy = remedies::open_roce(dialer, listener);
            Finding::repair("firewall-udp", &subject, what).with(remedy)
        }
        (Err(reason), _) => {
            let what = format!("no message over RDMA crosses {ports} ({reason})");
            let device = &proof.listener.device;
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
            let command = remedies::set_mtu(netdev(text)?, mtu);
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

/// Returns the MTU that the path of two ports has, as far as it is known: that of the measured path, if the packets left
/// through the same interface.
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
    let interface = netdev(&ports.1).unwrap_or("INTERFACE");
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
