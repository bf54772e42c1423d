//! The RDMA ports of one end: in this process, and as they are sent to the peer.

use std::{cmp::Reverse, collections::VecDeque, fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{
    device::{Device, GidEntry, Inventory, MTUS, Port, mtu_within},
    network::{Gid, GidKind, Scope, network_of},
};
use crate::config::RdmaConfig;

/// The most addresses that one end offers: enough for eight ports with an address of each family.
pub(crate) const MAX_OFFERS: usize = 16;

/// One port under one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) device: String,
    pub(crate) port: u8,
    /// The index of the address in the port's GID table.
    pub(crate) gid_index: u8,
    /// The interface that has the address, on Ethernet.
    pub(crate) netdev: Option<String>,
    /// The part that the peer receives.
    pub(crate) offer: Offer,
}

/// A candidate as the peer sees it. Its position in the list identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The number of the port in the list of its end. The addresses of one port share the number.
    pub(crate) port: u8,
    /// The address.
    pub(crate) gid: Gid,
    /// The protocol that uses the address, and so the link layer.
    pub(crate) kind: GidKind,
    /// The prefix length of the address, where it is known. A peer may send one that does not fit the address.
    pub(crate) prefix: Option<u8>,
    /// The address in an InfiniBand subnet.
    pub(crate) lid: u16,
    /// The speed in Mbit/s; 0 when unknown.
    pub(crate) rate_mbps: u32,
    /// The largest packet payload in bytes.
    pub(crate) mtu: u16,
    pub(crate) software: bool,
}

/// The offers of one end, at most [`MAX_OFFERS`]. More are refused when they are decoded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Offer>")]
pub(crate) struct Offers(Vec<Offer>);

impl Candidate {
    /// Makes the candidate for `entry` of `port` of `device`. `number` counts the ports of this host.
    pub(crate) fn new(number: u8, device: &Device, port: &Port, entry: &GidEntry) -> Self {
        Self {
            device: device.name.clone(),
            port: port.number,
            gid_index: entry.index,
            netdev: entry.netdev.clone(),
            offer: Offer {
                port: number,
                gid: entry.gid,
                kind: entry.kind,
                prefix: entry.prefix,
                lid: port.lid,
                rate_mbps: port.rate_mbps,
                mtu: entry.mtu,
                software: device.software,
            },
        }
    }

    /// Returns the path MTU to the peer in bytes: the smaller of both, and a valid one.
    pub(crate) fn path_mtu(&self, theirs: &Offer) -> u16 {
        let smaller = self.offer.mtu.min(theirs.mtu);
        mtu_within(smaller.into()).unwrap_or(MTUS[0])
    }
}

impl fmt::Display for Candidate {
    /// `mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.5 on eth0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Offer { gid, kind, .. } = &self.offer;
        let (device, port, index) = (&self.device, self.port, self.gid_index);
        write!(f, "{device} port {port}, GID {index} ({kind}, {gid}")?;
        match &self.netdev {
            Some(netdev) => write!(f, " on {netdev})"),
            None => f.write_str(")"),
        }
    }
}

impl Offers {
    /// Returns the offers of `candidates`, in their order; of too many, the first.
    pub(crate) fn of(candidates: &[Candidate]) -> Self {
        let offers = candidates.iter().take(MAX_OFFERS);
        Self(offers.map(|candidate| candidate.offer.clone()).collect())
    }

    pub(crate) fn as_slice(&self) -> &[Offer] {
        &self.0
    }
}

impl TryFrom<Vec<Offer>> for Offers {
    type Error = &'static str;

    fn try_from(offers: Vec<Offer>) -> Result<Self, Self::Error> {
        if offers.len() > MAX_OFFERS {
            return Err("too many offers");
        }
        Ok(Self(offers))
    }
}

/// What of this machine may be used: the fields of [`RdmaConfig`] that name a port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DeviceChoice {
    pub(crate) device: Option<String>,
    /// Only this port, of each device.
    pub(crate) port: Option<u8>,
    /// Only this GID, of each port.
    pub(crate) gid_index: Option<u8>,
    /// Only ports that have this partition key.
    pub(crate) pkey_index: u16,
}

impl From<&RdmaConfig> for DeviceChoice {
    fn from(config: &RdmaConfig) -> Self {
        Self {
            device: config.device.clone(),
            port: config.port,
            gid_index: config.gid_index,
            pkey_index: config.pkey_index,
        }
    }
}

/// The reason why this host has no port to offer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRdma {
    /// The user named a port that does not exist, which is an error with every policy.
    #[error("{0}")]
    Choice(String),
    /// The ports cannot be used now.
    #[error("{0}")]
    Unusable(String),
}

/// The most items listed in a message.
const MAX_LISTED: usize = 16;

impl DeviceChoice {
    /// Returns the candidates of this host, at most [`MAX_OFFERS`]: the best address of each port first, fast ports
    /// before slow ones, then the second address of each port, and so on.
    /// Fails when there are none, with the reason as one sentence.
    pub(crate) fn candidates(&self, inventory: &Inventory) -> Result<Vec<Candidate>, NoRdma> {
        let ports = self.ports(inventory)?;
        let mut usable: Vec<_> = ports
            .iter()
            .filter(|(device, port)| device.fault.is_none() && port.fault().is_none())
            .collect();
        // Stable: ports of one speed stay in the order of their names.
        usable.sort_by_key(|(device, port)| (device.software, Reverse(port.rate_mbps)));
        let lists = (0..=u8::MAX).zip(usable).map(|(number, (device, port))| {
            let entries = self.entries(port).into_iter();
            entries
                .map(|entry| Candidate::new(number, device, port, entry))
                .collect()
        });
        let candidates = round_robin(lists.collect());
        if candidates.is_empty() {
            return Err(NoRdma::Unusable(explain(&ports)));
        }
        Ok(candidates)
    }

    /// Returns the ports that were named, usable or not, at least one.
    fn ports<'a>(&self, inventory: &'a Inventory) -> Result<Vec<(&'a Device, &'a Port)>, NoRdma> {
        let all: Vec<_> = inventory.ports().collect();
        let asked_for = |(device, port): &(&Device, &Port)| {
            self.device.as_ref().is_none_or(|name| *name == device.name)
                && self.port.is_none_or(|number| number == port.number)
        };
        let ports: Vec<_> = all.iter().copied().filter(asked_for).collect();
        if ports.is_empty() && self != &Self::default() {
            return Err(NoRdma::Choice(self.no_port(&all)));
        }
        let key = usize::from(self.pkey_index);
        // Row 0 is there even where a driver does not list it.
        let has_key = |(_, port): &(&Device, &Port)| key == 0 || key < port.pkeys;
        let ports: Vec<_> = ports.into_iter().filter(has_key).collect();
        if ports.is_empty() && key != 0 {
            let text = format!("no port has a partition key at index {key}");
            return Err(NoRdma::Choice(text));
        }
        let Some(index) = self.gid_index else {
            return Ok(ports);
        };
        let has_gid = |(_, port): &(&Device, &Port)| port.gids.iter().any(|g| g.index == index);
        let with_gid: Vec<_> = ports.iter().copied().filter(has_gid).collect();
        if with_gid.is_empty() {
            return Err(NoRdma::Choice(no_gid(index, &ports)));
        }
        Ok(with_gid)
    }

    /// Returns the usable addresses of a port, the best first.
    fn entries<'a>(&self, port: &'a Port) -> Vec<&'a GidEntry> {
        let reachable = port.gids.iter().filter(|entry| entry.is_reachable());
        let mut entries: Vec<_> = match self.gid_index {
            Some(index) => reachable.filter(|entry| entry.index == index).collect(),
            // The rest of an InfiniBand port's GIDs are aliases for other software's use.
            None => reachable
                .filter(|entry| entry.kind != GidKind::InfiniBand || entry.index == 0)
                .collect(),
        };
        entries.sort_by_key(|entry| preference(entry));
        entries
    }

    fn no_port(&self, all: &[(&Device, &Port)]) -> String {
        let what = match (&self.device, self.port) {
            (Some(name), Some(port)) => format!("no RDMA device {name} with a port {port}"),
            (Some(name), None) => format!("no RDMA device {name}"),
            (None, Some(port)) => format!("no RDMA device with a port {port}"),
            (None, None) => "no RDMA device".to_owned(),
        };
        if all.is_empty() {
            return format!("there is {what}, nor any other");
        }
        let there = all.iter().map(|(device, port)| {
            let link = port
                .link_layer
                .map_or_else(|| "unknown".to_owned(), |l| l.to_string());
            let state = match &device.fault {
                Some(fault) => fault.to_string(),
                None if port.state == "ACTIVE" => "ACTIVE".to_owned(),
                None => format!("{}, {}", port.state, port.phys_state),
            };
            format!("{} port {} ({link}, {state})", device.name, port.number)
        });
        format!("there is {what}; there is: {}", listed(there.collect()))
    }
}

/// The order of addresses: RoCE v2 before v1; IPv4 before IPv6, and link-local addresses last.
fn preference(entry: &GidEntry) -> (bool, bool, bool, u8) {
    let GidEntry { gid, kind, .. } = entry;
    let link_local = gid.scope() == Scope::Link;
    (
        *kind == GidKind::RoceV1,
        link_local,
        gid.ip().is_ipv6(),
        entry.index,
    )
}

/// Returns the first of each list, then the second of each, and so on.
fn round_robin(lists: Vec<Vec<Candidate>>) -> Vec<Candidate> {
    let mut lists: VecDeque<_> = lists.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    while let Some(mut list) = lists.pop_front() {
        if let Some(candidate) = list.next() {
            all.push(candidate);
            lists.push_back(list);
        }
    }
    all.truncate(MAX_OFFERS);
    all
}

fn no_gid(index: u8, ports: &[(&Device, &Port)]) -> String {
    let there = ports.iter().flat_map(|(device, port)| {
        port.gids.iter().map(|entry| {
            let (device, port) = (&device.name, port.number);
            let GidEntry {
                index, kind, gid, ..
            } = entry;
            format!("{index} on {device} port {port} ({kind}, {gid})")
        })
    });
    let there: Vec<_> = there.collect();
    if there.is_empty() {
        return format!("there is no GID with index {index}, nor any other");
    }
    format!(
        "there is no GID with index {index}; there is: {}",
        listed(there)
    )
}

/// Joins the items; of too many, the first and the number of the others.
fn listed(mut items: Vec<String>) -> String {
    let more = items.len().saturating_sub(MAX_LISTED);
    items.truncate(MAX_LISTED);
    if more > 0 {
        items.push(format!("and {more} more"));
    }
    items.join(", ")
}

/// The most reasons in a message.
const MAX_REASONS: usize = 4;

/// The most networks that are named for one end.
const MAX_NETWORKS: usize = 3;

/// Explains why none of these ports can be used.
pub(crate) fn explain(ports: &[(&Device, &Port)]) -> String {
    if ports.is_empty() {
        return "no RDMA device".to_owned();
    }
    let mut reasons: Vec<(String, String)> = Vec::new();
    for (device, port) in ports {
        // A device that cannot be used is named once, not once for each port.
        let (subject, fault) = match (&device.fault, port.fault()) {
            (Some(fault), _) => (device.name.clone(), fault.to_string()),
            (None, Some(fault)) => (
                format!("device {} port {}", device.name, port.number),
                fault.to_string(),
            ),
            (None, None) => (
                format!("device {} port {}", device.name, port.number),
                "has no address that a peer could reach under that index".to_owned(),
            ),
        };
        if !reasons.iter().any(|(known, _)| *known == subject) {
            reasons.push((subject, fault));
        }
    }
    let more = reasons.len().saturating_sub(MAX_REASONS);
    let reasons = reasons.into_iter().take(MAX_REASONS);
    let mut reasons: Vec<_> = reasons
        .map(|(subject, fault)| format!("{subject} {fault}"))
        .collect();
    if more > 0 {
        reasons.push(format!("and so on for {more} more"));
    }
    reasons.join("; ")
}

/// Explains why no queue pair works although pairs of ports were tried: the reason of the first pair, which is the
/// best. Both ends report it, so each reason names its host.
pub(crate) fn no_pair_works(reasons: &[String], doubt: Option<&str>) -> String {
    let first = reasons.first().map_or("", String::as_str);
    let text = match reasons.len() {
        0 | 1 => first.to_owned(),
        2 => format!("{first}; nor does the next pair of ports work"),
        tried => format!("{first}; nor do the next {} pairs of ports work", tried - 1),
    };
    match doubt {
        Some(doubt) => format!("{text}; {doubt}"),
        None => text,
    }
}

/// Returns the advice for a queue pair over which nothing arrives, for an address of this kind.
pub(crate) fn remedy(kind: GidKind) -> &'static str {
    match kind {
        GidKind::RoceV2 => "RoCE v2 is UDP, port 4791: see that nothing on the way drops it",
        GidKind::RoceV1 => "RoCE v1 ends at the first router: see that the hosts share a link",
        GidKind::InfiniBand => "see that `ibping` gets through",
    }
}

/// Explains why no pair of ports can work, although both ends offer ports.
pub(crate) fn networks_differ(ours: &[Candidate], theirs: &[Offer]) -> String {
    let ours: Vec<_> = ours.iter().map(|ours| &ours.offer).collect();
    let theirs: Vec<_> = theirs.iter().collect();
    let (here, there) = (networks(&ours), networks(&theirs));
    if here == there {
        // Two InfiniBand fabrics, or two private networks, may well bear one name.
        return format!("no message crosses the hosts' RDMA networks ({here} on both): join them");
    }
    format!(
        "the hosts' RDMA networks differ ({here} here, {there} there): put a port of each into one"
    )
}

/// Lists the networks of one end, each once. Link-local networks are named only if there are no others.
fn networks(offers: &[&Offer]) -> String {
    let tells =
        |offer: &&&Offer| offer.kind == GidKind::InfiniBand || offer.gid.scope() == Scope::Global;
    let telling: Vec<_> = offers.iter().filter(tells).collect();
    let offers = if telling.is_empty() {
        offers.iter().collect()
    } else {
        telling
    };
    let mut names: Vec<String> = Vec::new();
    for name in offers.into_iter().map(|offer| network(offer)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = names.len().saturating_sub(MAX_NETWORKS);
    names.truncate(MAX_NETWORKS);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.pop() {
        None => "none".to_owned(),
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} and {last}", names.join(", ")),
    }
}

fn network(offer: &Offer) -> String {
    if offer.kind == GidKind::InfiniBand {
        return format!("InfiniBand subnet {:016x}", offer.gid.subnet_prefix());
    }
    let ip = offer.gid.ip();
    let network = match (offer.prefix, offer.gid.scope()) {
        (_, Scope::Link) if ip.is_ipv6() => "fe80::/64".to_owned(),
        (Some(prefix), _) => {
            let longest = if ip.is_ipv4() { 32 } else { 128 };
            format!("{}/{}", network_of(ip, prefix), prefix.min(longest))
        }
        (None, _) => IpAddr::to_string(&ip),
    };
    match offer.kind {
        GidKind::RoceV1 => format!("{network} by RoCE v1"),
        _ => network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::ports::fixtures::roce;

    #[test]
    fn offers_survive_the_wire_and_are_small() {
        let mut largest = roce("fe80::1").offer;
        largest.prefix = Some(u8::MAX);
        (largest.lid, largest.rate_mbps, largest.mtu) = (u16::MAX, u32::MAX, u16::MAX);
        largest.port = u8::MAX;
        let offers = Offers(vec![largest; MAX_OFFERS]);
        let bytes = postcard::to_stdvec(&offers).unwrap();
        assert!(bytes.len() <= 528, "{} bytes", bytes.len());
        assert_eq!(postcard::from_bytes::<Offers>(&bytes), Ok(offers));
    }

    #[test]
    fn more_offers_than_allowed_are_no_message() {
        let too_many = vec![roce("10.1.0.5").offer; MAX_OFFERS + 1];
        let bytes = postcard::to_stdvec(&too_many).unwrap();
        assert!(postcard::from_bytes::<Offers>(&bytes).is_err());
    }

    #[test]
    fn of_too_many_candidates_the_first_are_offered() {
        let candidates: Vec<_> = (0..40).map(|n| roce(&format!("10.1.0.{n}"))).collect();
        let offers = Offers::of(&candidates);
        assert_eq!(offers.as_slice().len(), MAX_OFFERS);
        assert_eq!(offers.as_slice()[15], candidates[15].offer);
    }

    #[test]
    fn the_path_mtu_is_the_smaller_and_always_one_that_there_is() {
        let ours = roce("10.1.0.5");
        let with = |mtu| {
            ours.path_mtu(&Offer {
                mtu,
                ..ours.offer.clone()
            })
        };
        assert_eq!(ours.offer.mtu, 4096);
        assert_eq!(
            [with(1024), with(u16::MAX), with(1500), with(0)],
            [1024, 4096, 1024, 256]
        );
    }
}
