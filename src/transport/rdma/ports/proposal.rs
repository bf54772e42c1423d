//! The pairs of ports that two ends try, the best first. The acceptor proposes them.
//!
//! 1. How likely it works: one network; then addresses that IP routes to each other; last, what
//!    works only if both ends are on one Ethernet link, which no address tells.
//! 2. Hardware before software.
//! 3. The rate of the slower port.
//! 4. RoCE v2 before v1, IPv4 before IPv6, the larger packets.
//!
//! Both ends come to the same order from the same two lists, without another message.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{
    network::{GidKind, Scope, same_network},
    offer::{Candidate, MAX_OFFERS, Offer, Offers, networks_differ},
};
use crate::{
    host::host_name,
    transport::control::{message::printable, noise::Role},
};

/// The most pairs of ports that are tried: the two ports of a card, each with its peer, and one more. With more pairs,
/// the time for each would be shorter than the recovery from the loss of one packet.
const MAX_PAIRS: usize = 3;

/// The ports and the chunk size of one end, as the peer receives them.
#[derive(Serialize, Deserialize)]
pub(crate) struct PortsOffer {
    ports: Offers,
    /// The largest payload of a chunk, in bytes, with one rail, with two, and so on.
    chunk_bytes: Vec<u32>,
}

/// The acceptor's proposal.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "WireProposal", into = "WireProposal")]
pub(crate) struct Proposal {
    /// The pairs of ports, best first: at least one, and at most [`MAX_PAIRS`].
    pub(crate) pairs: Vec<PortPair>,
    /// The reason why possibly none of the pairs works, if the acceptor has found one.
    pub(crate) doubt: Option<String>,
    /// The most rails for which both ends have memory.
    pub(crate) rails: u8,
    /// The number of pairs, from the first one on, over which the rails are spread: they share no port.
    pub(crate) spread: u8,
}

type WireProposal = (Vec<PortPair>, Option<String>, u8, u8);

/// One pair of ports, by their positions in the two lists, and the parameters of a link between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortPair {
    /// The position of the port in the dialer's list.
    pub(crate) dialer: u8,
    /// The position of the port in the acceptor's list.
    pub(crate) acceptor: u8,
    /// The path MTU, in bytes.
    pub(crate) mtu: u16,
    /// The payload of a chunk, in bytes.
    pub(crate) chunk_bytes: u32,
    /// The first packet sequence number of the dialer.
    pub(crate) dialer_psn: u32,
    /// The first packet sequence number of the acceptor.
    pub(crate) acceptor_psn: u32,
}

impl PortsOffer {
    /// Offers `candidates`, and chunks of at most `chunk_bytes` with one rail, with two, and so on.
    pub(crate) fn of(candidates: &[Candidate], chunk_bytes: Vec<u32>) -> Self {
        Self {
            ports: Offers::of(candidates),
            chunk_bytes,
        }
    }
}

impl Proposal {
    /// Proposes pairs of the acceptor's `candidates` and the dialer's ports, with fresh sequence numbers for each pair,
    /// for at most so many `rails`, with chunks of at most `chunk_bytes` with one rail, with two, and so on.
    pub(crate) fn new(
        candidates: &[Candidate],
        (chunk_bytes, rails): (&[u32], usize),
        dialer: &PortsOffer,
        psns: impl Fn() -> [u32; 2],
    ) -> Result<Self, String> {
        let theirs = dialer.ports.as_slice();
        let ours = PortsOffer::of(candidates, chunk_bytes.to_vec());
        let pairs = rank(Role::Acceptor, candidates, theirs);
        let pairs = to_try(&pairs, ours.ports.as_slice(), theirs, MAX_PAIRS);
        if pairs.is_empty() {
            return Err(networks_differ(candidates, theirs));
        }
        let together = |&(i, j): &(usize, usize)| share_network(&candidates[i].offer, &theirs[j]);
        let doubt = (!pairs.iter().any(together)).then(|| {
            let text = networks_differ(candidates, theirs);
            format!("{}: {text}", host_name())
        });
        let sizes = ours.chunk_bytes.iter().zip(&dialer.chunk_bytes);
        let sizes = sizes.map(|(here, there)| *here.min(there)).take(rails);
        let (rails, chunk_bytes) = (1..).zip(sizes).last().ok_or("an offer without chunks")?;
        let pair = |(i, j): (usize, usize)| {
            let [dialer_psn, acceptor_psn] = psns();
            PortPair {
                dialer: small(j),
                acceptor: small(i),
                mtu: candidates[i].path_mtu(&theirs[j]),
                chunk_bytes,
                dialer_psn,
                acceptor_psn,
            }
        };
        let spread = spread(&pairs, ours.ports.as_slice(), theirs);
        let pairs = pairs.into_iter().map(pair).collect();
        Ok(Self {
            pairs,
            doubt,
            rails,
            spread,
        })
    }

    /// Returns the ways to lay so many rails over the pairs, the best first: for each way the pair of each rail.
    pub(crate) fn ways(&self, rails: usize) -> Vec<Vec<&PortPair>> {
        let spread = usize::from(self.spread).min(rails);
        let together = (spread > 1).then(|| &self.pairs[..spread]);
        let ways = together.into_iter().chain(self.pairs.chunks(1));
        ways.map(|pairs| pairs.iter().cycle().take(rails).collect())
            .collect()
    }

    /// Returns the pairs for the links of a rail that begins with `pair`: `pair`, and then those that are likely to
    /// work when its network is lost.
    pub(crate) fn pairs_of_rail<'a>(&'a self, pair: &'a PortPair) -> Vec<&'a PortPair> {
        let alike = &self.pairs[..usize::from(self.spread)];
        match alike.iter().position(|other| other == pair) {
            Some(place) => alike[place..].iter().chain(&alike[..place]).collect(),
            None => vec![pair],
        }
    }
}

impl From<Proposal> for WireProposal {
    fn from(proposal: Proposal) -> Self {
        let Proposal {
            pairs,
            doubt,
            rails,
            spread,
        } = proposal;
        (pairs, doubt, rails, spread)
    }
}

impl TryFrom<WireProposal> for Proposal {
    type Error = &'static str;

    fn try_from((pairs, doubt, rails, spread): WireProposal) -> Result<Self, Self::Error> {
        if pairs.is_empty() || pairs.len() > MAX_PAIRS {
            return Err("no pair of ports, or too many");
        }
        if rails == 0 || usize::from(spread) > pairs.len() {
            return Err("no rails, or too many pairs of ports for them");
        }
        let doubt = doubt.map(|text| printable(&text));
        Ok(Self {
            pairs,
            doubt,
            rails,
            spread,
        })
    }
}

/// Converts a position in a list of at most [`MAX_OFFERS`].
fn small(place: usize) -> u8 {
    u8::try_from(place).unwrap_or(u8::MAX)
}

/// Returns the pairs (ours, theirs) by their positions in the two lists, the best first. Pairs that cannot work are
/// left out, and so are offers beyond [`MAX_OFFERS`].
pub(crate) fn rank(end: Role, ours: &[Candidate], theirs: &[Offer]) -> Vec<(usize, usize)> {
    let ours = || ours.iter().map(|ours| &ours.offer).take(MAX_OFFERS);
    let mut pairs = Vec::new();
    for (i, ours) in ours().enumerate() {
        for (j, theirs) in theirs.iter().take(MAX_OFFERS).enumerate() {
            pairs.extend(merit(ours, theirs).map(|merit| (merit, (i, j))));
        }
    }
    pairs.sort_by_key(|&(merit, (i, j))| match end {
        Role::Dialer => (merit, i, j),
        Role::Acceptor => (merit, j, i),
    });
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

/// Returns the pairs to try, at most `most` of those `ranked`: one for each pair of ports, and first those that share
/// no port with an earlier pair, since it may be the port that does not work.
pub(crate) fn to_try(
    ranked: &[(usize, usize)],
    ours: &[Offer],
    theirs: &[Offer],
    most: usize,
) -> Vec<(usize, usize)> {
    let ports = |&(i, j): &(usize, usize)| (ours[i].port, theirs[j].port);
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for pair in ranked {
        if !pairs.iter().any(|known| ports(known) == ports(pair)) {
            pairs.push(*pair);
        }
    }
    let (mut apart, mut rest) = (Vec::new(), Vec::new());
    for pair in pairs {
        let (a, b) = ports(&pair);
        let fresh = |known: &(usize, usize)| ports(known).0 != a && ports(known).1 != b;
        let list = if apart.iter().all(fresh) {
            &mut apart
        } else {
            &mut rest
        };
        list.push(pair);
    }
    apart.append(&mut rest);
    apart.truncate(most);
    apart
}

/// Returns the number of pairs, from the first one on, that share no port with each other, are as likely to work as the
/// first one, and are hardware if that one is.
fn spread(pairs: &[(usize, usize)], ours: &[Offer], theirs: &[Offer]) -> u8 {
    let merit = |&(i, j): &(usize, usize)| merit(&ours[i], &theirs[j]);
    let alike = |pair: &(usize, usize)| {
        let (Some(first), Some(this)) = (merit(&pairs[0]), merit(pair)) else {
            return false;
        };
        (first.reach, first.software) == (this.reach, this.software)
    };
    let is_apart = |place: usize| {
        let (i, j) = pairs[place];
        let apart = |&(a, b): &(usize, usize)| {
            ours[a].port != ours[i].port && theirs[b].port != theirs[j].port
        };
        pairs[..place].iter().all(apart)
    };
    let count = (0..pairs.len()).take_while(|&place| is_apart(place) && alike(&pairs[place]));
    small(count.count())
}

/// The rank of a pair: the smaller, the better. It is the same seen from either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merit {
    reach: Reachability,
    software: bool,
    rate_mbps: Reverse<u32>,
    version_1: bool,
    ipv6: bool,
    mtu: Reverse<u16>,
}

/// The condition under which two addresses reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reachability {
    /// None: they are in one network.
    Network,
    /// There is a route between their networks.
    Route,
    /// Both ends are on one Ethernet link, which their addresses suggest.
    Link,
    /// Both ends are on one Ethernet link, although their addresses suggest that they are not.
    LinkAgainstOdds,
}

fn merit(a: &Offer, b: &Offer) -> Option<Merit> {
    Some(Merit {
        reach: reach(a, b)?,
        software: a.software || b.software,
        rate_mbps: Reverse(a.rate_mbps.min(b.rate_mbps)),
        version_1: a.kind == GidKind::RoceV1,
        ipv6: a.gid.ip().is_ipv6() || b.gid.ip().is_ipv6(),
        mtu: Reverse(a.mtu.min(b.mtu)),
    })
}

fn reach(a: &Offer, b: &Offer) -> Option<Reachability> {
    if a.kind != b.kind || a.gid.is_zero() || b.gid.is_zero() {
        return None;
    }
    if a.kind == GidKind::InfiniBand {
        let same = a.gid.subnet_prefix() == b.gid.subnet_prefix();
        return same.then_some(Reachability::Network);
    }
    let scope = a.gid.scope();
    let alike = scope == b.gid.scope() && a.gid.ip().is_ipv4() == b.gid.ip().is_ipv4();
    if !alike || scope == Scope::Nowhere {
        return None;
    }
    Some(match (a.kind, scope, share_network(a, b)) {
        (GidKind::RoceV2, Scope::Global, true) => Reachability::Network,
        (GidKind::RoceV2, Scope::Global, false) => Reachability::Route,
        (_, Scope::Link, _) | (_, _, true) => Reachability::Link,
        (..) => Reachability::LinkAgainstOdds,
    })
}

/// Returns true if both IP addresses are in one network, by the longer of both prefixes: both ends have to reach each
/// other without a router.
pub(crate) fn share_network(a: &Offer, b: &Offer) -> bool {
    let longer = a.prefix.zip(b.prefix).map(|(a, b)| a.max(b));
    a.gid == b.gid || longer.is_some_and(|prefix| same_network(a.gid.ip(), b.gid.ip(), prefix))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::rdma::{
        link_setup::{decode, encode},
        ports::{
            fixtures::{infiniband, roce},
            network::Gid,
        },
    };

    fn proposal(ours: &[Candidate], theirs: &[Candidate]) -> Result<Proposal, String> {
        let theirs = PortsOffer::of(theirs, vec![1 << 16; 4]);
        Proposal::new(ours, (&[1 << 20; 8], 6), &theirs, || [1, 2])
    }

    fn with_port(mut candidate: Candidate, port: u8) -> Candidate {
        candidate.offer.port = port;
        candidate
    }

    #[test]
    fn a_proposal_survives_the_wire() {
        let ours = [roce("10.1.0.1"), with_port(roce("10.2.0.1"), 1)];
        let theirs = [with_port(roce("10.2.0.2"), 1), roce("10.1.0.2")];
        let made = proposal(&ours, &theirs).unwrap();
        let read: Proposal = decode(&encode(&made)).unwrap();
        assert_eq!((&read.pairs, &read.doubt), (&made.pairs, &None));
        let places = read.pairs.iter().map(|pair| (pair.acceptor, pair.dialer));
        assert_eq!(places.collect::<Vec<_>>()[..2], [(1, 0), (0, 1)]);
        assert_eq!(
            (read.pairs[0].mtu, read.pairs[0].chunk_bytes),
            (4096, 1 << 16)
        );
    }

    #[test]
    fn none_and_too_many_are_no_proposal() {
        let pairs = proposal(&[roce("10.1.0.1")], &[roce("10.1.0.2")])
            .unwrap()
            .pairs;
        for count in [0, MAX_PAIRS + 1] {
            let choice: WireProposal = (vec![pairs[0].clone(); count], None, 1, 1);
            assert!(decode::<Proposal>(&encode(&choice)).is_err());
        }
    }

    #[test]
    fn networks_that_differ_are_doubted_where_there_may_be_a_route_and_refused_where_there_is_none()
    {
        let routed = proposal(&[roce("10.1.0.1")], &[roce("10.2.0.2")]).unwrap();
        let doubt = routed.doubt.unwrap();
        assert!(
            doubt.contains("(10.1.0.0/24 here, 10.2.0.0/24 there)"),
            "{doubt}"
        );
        let none = proposal(&[roce("10.1.0.1")], &[infiniband(1)])
            .err()
            .unwrap();
        assert!(
            none.contains("10.1.0.0/24 here, InfiniBand subnet"),
            "{none}"
        );
    }

    fn offers(candidates: &[Candidate]) -> Vec<Offer> {
        candidates.iter().map(|c| c.offer.clone()).collect()
    }

    fn ranked(ours: &[Candidate], theirs: &[Candidate]) -> Vec<(usize, usize)> {
        rank(Role::Dialer, ours, &offers(theirs))
    }

    fn with(mut candidate: Candidate, change: impl FnOnce(&mut Offer)) -> Candidate {
        change(&mut candidate.offer);
        candidate
    }

    #[test]
    fn the_fastest_pair_in_one_network_comes_first() {
        let ours = [
            with(roce("10.0.0.1"), |o| o.rate_mbps = 10_000),
            roce("10.1.0.1"),
        ];
        let theirs = [roce("10.1.0.2"), roce("10.0.0.2")];
        assert_eq!(ranked(&ours, &theirs), [(1, 0), (0, 1), (1, 1), (0, 0)]);
    }

    #[test]
    fn software_comes_after_hardware_of_any_rate() {
        let rxe = with(roce("10.1.0.1"), |o| o.software = true);
        let slow = with(roce("10.1.0.2"), |o| o.rate_mbps = 1_000);
        assert_eq!(ranked(&[rxe, slow], &[roce("10.1.0.9")]), [(1, 0), (0, 0)]);
    }

    #[test]
    fn what_can_be_routed_comes_after_what_need_not_and_before_what_cannot() {
        let ours = [
            roce("fe80::1"),
            with(roce("10.1.0.1"), |o| o.kind = GidKind::RoceV1),
            with(roce("10.7.0.1"), |o| o.kind = GidKind::RoceV1),
            roce("10.7.0.1"),
            with(roce("10.1.0.3"), |o| o.prefix = None),
            roce("10.1.0.1"),
        ];
        let theirs = [
            roce("10.1.0.2"),
            with(roce("10.1.0.2"), |o| o.kind = GidKind::RoceV1),
            roce("fe80::2"),
        ];
        assert_eq!(
            ranked(&ours, &theirs),
            [(5, 0), (3, 0), (4, 0), (0, 2), (1, 1), (2, 1)]
        );
    }

    #[test]
    fn only_like_goes_with_like() {
        let all = [
            infiniband(1),
            roce("10.1.0.1"),
            roce("fd00::1"),
            roce("fe80::1"),
            with(roce("10.1.0.1"), |o| o.kind = GidKind::RoceV1),
        ];
        for (i, j) in ranked(&all, &all) {
            assert_eq!(i, j);
        }
        assert_eq!(ranked(&all, &all).len(), all.len());
    }

    #[test]
    fn infiniband_subnets_do_not_mix() {
        let foreign = with(infiniband(1), |o| o.gid.0[7] = 9);
        assert!(ranked(&[infiniband(1)], &[foreign]).is_empty());
        assert_eq!(ranked(&[infiniband(1)], &[infiniband(2)]), [(0, 0)]);
    }

    #[test]
    fn loopback_is_no_network() {
        let loopback = [roce("127.0.0.1"), roce("::1")];
        assert!(ranked(&loopback, &loopback).is_empty());
    }

    #[test]
    fn the_narrower_network_counts() {
        let wide = with(roce("10.1.5.1"), |o| o.prefix = Some(16));
        let narrow = roce("10.1.0.2");
        assert!(!share_network(&wide.offer, &narrow.offer));
        let near = with(roce("10.1.0.1"), |o| o.prefix = Some(16));
        assert!(share_network(&near.offer, &narrow.offer));
    }

    #[test]
    fn what_is_tried_next_has_other_ports() {
        let at = |ip, port| with(roce(ip), |o| o.port = port);
        let ours = [at("10.1.0.1", 0), at("10.1.0.3", 1), at("fd00::1", 0)];
        let theirs = [at("10.1.0.2", 0), at("10.1.0.4", 1), at("fd00::2", 0)];
        let (ours_sent, theirs_sent) = (offers(&ours), offers(&theirs));
        let tried = |most| to_try(&ranked(&ours, &theirs), &ours_sent, &theirs_sent, most);
        assert_eq!(ranked(&ours, &theirs)[..3], [(0, 0), (0, 1), (1, 0)]);
        assert_eq!(tried(3), [(0, 0), (1, 1), (0, 1)]);
        assert_eq!(tried(9), [(0, 0), (1, 1), (0, 1), (1, 0)]);
        assert_eq!(tried(1), [(0, 0)]);
    }

    #[test]
    fn rails_are_spread_over_pairs_that_are_apart_and_alike() {
        let at = |ip, port, software| {
            let card = |o: &mut Offer| (o.port, o.software) = (port, software);
            with(roce(ip), card)
        };
        let ours = [
            at("10.1.0.1", 0, false),
            at("10.1.0.3", 1, false),
            at("10.1.0.5", 2, true),
        ];
        let theirs = [
            at("10.1.0.2", 0, false),
            at("10.1.0.4", 1, false),
            at("10.1.0.6", 2, true),
        ];
        let ways = |ours: &[_], theirs: &[_], rails| {
            let made = proposal(ours, theirs).unwrap();
            let ports = |pair: &PortPair| (pair.acceptor, pair.dialer);
            let ways = made.ways(rails).into_iter();
            let ways = ways.map(|way| way.into_iter().map(ports).collect::<Vec<_>>());
            ways.collect::<Vec<_>>()
        };
        // Two cards of hardware at each end; software has its turn when both have failed.
        let [first, second, third] = [(0, 0), (1, 1), (2, 2)];
        assert_eq!(
            ways(&ours, &theirs, 3),
            [
                vec![first, second, first],
                vec![first; 3],
                vec![second; 3],
                vec![third; 3]
            ]
        );
        assert_eq!(ways(&ours[..1], &theirs[..1], 2), [[first; 2]]);
        let single = ways(&ours, &theirs, 1);
        assert_eq!(single, [[first], [second], [third]]);
        let made = proposal(&ours, &theirs).unwrap();
        assert_eq!(made.rails, 4, "of 6 that are wanted");
        let after = |place: usize| {
            let pairs = made.pairs_of_rail(&made.pairs[place]).into_iter();
            pairs.map(|pair| pair.acceptor).collect::<Vec<_>>()
        };
        assert_eq!(
            [after(0), after(1), after(2)],
            [vec![0, 1], vec![1, 0], vec![2]]
        );
    }

    prop_compose! {
        /// Few values each, so that ties are common.
        fn offer()(
            kind in prop::sample::select(vec![GidKind::InfiniBand, GidKind::RoceV1, GidKind::RoceV2]),
            gid in prop::sample::select(vec![
                "::", "::1", "fe80::1", "fe80::2", "fd00::1", "fd00:1::1",
                "::ffff:10.1.0.1", "::ffff:10.1.0.2", "::ffff:10.2.0.1", "::ffff:169.254.0.1",
            ]),
            prefix in prop::option::of(prop::sample::select(vec![0, 16, 24, 64, 255])),
            rate_mbps in prop::sample::select(vec![0, 2_500, 100_000]),
            mtu in prop::sample::select(vec![0, 1024, 4096]),
            software: bool,
            lid in 0_u16..3,
            port in 0_u8..3,
        ) -> Candidate {
            let gid = Gid::parse(gid).unwrap();
            let mut candidate = roce("10.1.0.1");
            candidate.offer = Offer { port, gid, kind, prefix, lid, rate_mbps, mtu, software };
            candidate
        }
    }

    proptest! {
        #[test]
        fn both_ends_come_to_the_same_order(
            dialer in prop::collection::vec(offer(), 0..20),
            acceptor in prop::collection::vec(offer(), 0..20),
        ) {
            let here = rank(Role::Dialer, &dialer, &offers(&acceptor));
            let there = rank(Role::Acceptor, &acceptor, &offers(&dialer));
            let mirrored: Vec<_> = there.into_iter().map(|(i, j)| (j, i)).collect();
            prop_assert_eq!(&here, &mirrored);
            let mut once = here.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), here.len());
            prop_assert!(here.iter().all(|&(i, j)| i < MAX_OFFERS.min(dialer.len()) && j < MAX_OFFERS.min(acceptor.len())));
        }

        #[test]
        fn one_machine_agrees_with_itself(list in prop::collection::vec(offer(), 0..20)) {
            let here = rank(Role::Dialer, &list, &offers(&list));
            let there = rank(Role::Acceptor, &list, &offers(&list));
            prop_assert_eq!(here, there.into_iter().map(|(i, j)| (j, i)).collect::<Vec<_>>());
        }
    }
}
