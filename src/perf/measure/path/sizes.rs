//! The sizes of packets to send. Pure, no I/O.

use std::net::IpAddr;

use crate::perf::messages::ProbedSize;

/// Sizes that paths are known to have: the least of IPv4 and of IPv6, tunnels (`WireGuard`, VXLAN, GRE), `PPPoE`,
/// Ethernet, the larger packets of RoCE, FDDI, and "jumbo frames".
const USUAL: &[u32] = &[
    576, 1280, 1400, 1420, 1450, 1476, 1492, 1500, 2144, 4192, 8192, 8950, 9000,
];

/// The MTU that is assumed of an interface that does not say one, in bytes: that of Ethernet.
const ASSUMED_MTU: u32 = 1500;

/// The largest packet of IP, in bytes.
const MAX_PACKET_BYTES: u32 = 65_535;

/// The sizes that one round sends between two known ones.
const BETWEEN: u32 = 16;

/// The header of UDP, in bytes.
const UDP_BYTES: u32 = 8;

/// Returns the sizes of a round in bytes, the smallest first; none if no further round is needed.
///
/// Round 0 sends usual sizes up to the MTU of the interface. Round 1 sends those again of which no packet has arrived.
/// The rounds that follow find the largest size that arrives.
pub(super) fn next(round: u32, probes: &[ProbedSize], mtu: Option<u32>) -> Vec<u32> {
    if round == 0 {
        return first(mtu.unwrap_or(ASSUMED_MTU));
    }
    let mut lost = probes.iter().filter(|probe| probe.arrived == 0);
    if round == 1 {
        return lost.map(|probe| probe.bytes).collect();
    }
    let arrived = probes.iter().filter(|probe| probe.arrived > 0);
    let Some(largest) = arrived.map(|probe| probe.bytes).max() else {
        return Vec::new();
    };
    let smallest = lost.find(|probe| probe.bytes > largest);
    smallest.map_or_else(Vec::new, |smallest| between(largest, smallest.bytes))
}

/// Adds the counts of a size to the list, which stays in the order of the sizes.
pub(super) fn count(probes: &mut Vec<ProbedSize>, probe: ProbedSize) {
    match probes.binary_search_by_key(&probe.bytes, |known| known.bytes) {
        Ok(index) => {
            probes[index].sent += probe.sent;
            probes[index].arrived += probe.arrived;
        }
        Err(index) => probes.insert(index, probe),
    }
}

/// Returns the size of the payload of a packet with these bytes, headers included.
pub(super) fn payload(bytes: u32, peer: IpAddr) -> usize {
    let headers = UDP_BYTES + if peer.is_ipv4() { 20 } else { 40 };
    bytes.saturating_sub(headers) as usize
}

/// Returns the usual sizes up to an MTU, and the MTU itself.
fn first(mtu: u32) -> Vec<u32> {
    let mtu = mtu.min(MAX_PACKET_BYTES);
    let mut sizes: Vec<u32> = USUAL.iter().copied().filter(|size| *size < mtu).collect();
    sizes.push(mtu);
    sizes
}

/// Returns at most [`BETWEEN`] sizes between two others, in equal steps.
fn between(low: u32, high: u32) -> Vec<u32> {
    let gap = high.saturating_sub(low);
    let step = gap.div_ceil(BETWEEN + 1).max(1);
    let sizes = (1..=BETWEEN).map(|number| low + number * step);
    sizes.take_while(|size| *size < high).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sends rounds over a path that passes packets of at most `limit` bytes. Returns the counts, and the number of
    /// rounds.
    fn probed(mtu: Option<u32>, limit: u32) -> (Vec<ProbedSize>, u32) {
        let mut probes = Vec::new();
        for round in 0.. {
            let sizes = next(round, &probes, mtu);
            if sizes.is_empty() {
                return (probes, round);
            }
            assert!(sizes.len() <= BETWEEN as usize && sizes.is_sorted());
            for bytes in sizes {
                let arrived = if bytes <= limit { 4 } else { 0 };
                let sent = 4;
                count(
                    &mut probes,
                    ProbedSize {
                        bytes,
                        sent,
                        arrived,
                    },
                );
            }
        }
        unreachable!("a number of rounds has an end")
    }

    fn largest(probes: &[ProbedSize]) -> Option<u32> {
        let arrived = probes.iter().filter(|probe| probe.arrived > 0);
        arrived.map(|probe| probe.bytes).max()
    }

    #[test]
    fn a_path_that_passes_all_packets_takes_one_round() {
        let (probes, rounds) = probed(Some(1500), 9000);
        assert_eq!(rounds, 1);
        assert_eq!(largest(&probes), Some(1500));
        let (probes, rounds) = probed(Some(65_536), u32::MAX);
        assert_eq!((largest(&probes), rounds), (Some(65_535), 1));
        assert_eq!(largest(&probed(None, u32::MAX).0), Some(1500));
    }

    #[test]
    fn a_path_that_passes_nothing_takes_two_rounds() {
        let (probes, rounds) = probed(Some(9000), 0);
        assert_eq!((largest(&probes), rounds), (None, 2));
        assert!(probes.iter().all(|probe| probe.sent == 8));
    }

    #[test]
    fn an_interface_with_a_small_mtu_sends_one_size() {
        assert_eq!(first(500), [500]);
        assert_eq!(first(0), [0]);
    }

    #[test]
    fn headers_are_part_of_a_packet() {
        assert_eq!(payload(1500, [10, 0, 0, 1].into()), 1472);
        assert_eq!(payload(1500, std::net::Ipv6Addr::LOCALHOST.into()), 1452);
        assert_eq!(payload(20, [10, 0, 0, 1].into()), 0);
    }

    proptest! {
        #[test]
        fn the_largest_size_is_found_to_the_byte(mtu in 600..70_000_u32, limit in 576..70_000_u32) {
            let (probes, rounds) = probed(Some(mtu), limit);
            prop_assert_eq!(largest(&probes), Some(limit.min(mtu).min(MAX_PACKET_BYTES)));
            prop_assert!(rounds <= super::super::MAX_ROUNDS, "{} rounds", rounds);
            prop_assert!(probes.is_sorted_by_key(|probe| probe.bytes));
        }
    }
}
