//! The reason why there is no RDMA, as one sentence for the user.

use std::net::IpAddr;

use super::{
    device::{Device, Port},
    gid::{GidKind, Scope},
    network::network_of,
    offer::{Candidate, Offer},
};

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

/// Explains why no queue pair works although pairs of ports were tried: the reason of the first pair, which is the best.
/// Both ends report it, so each reason names its host.
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
