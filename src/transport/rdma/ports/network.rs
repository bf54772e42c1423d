//! The addresses of RDMA ports, and the networks of this host's interfaces.
//!
//! procfs has no list of IPv4 addresses with their masks, but each such address puts a route for
//! its network into the main table. Where it does not (another table, `noprefixroute`, a /32) the
//! prefix is unknown, and the address counts as one that has to be routed to.

use std::{
    fmt, fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// The networks of this host's interfaces.
#[derive(Debug, Default)]
pub(crate) struct Networks(Vec<Network>);

#[derive(Debug)]
struct Network {
    netdev: String,
    address: IpAddr,
    prefix: u8,
}

impl Networks {
    /// Reads `net/route` and `net/if_inet6` below `proc`. What cannot be read is left out.
    pub(crate) fn read(proc: &Path) -> Self {
        let lines =
            |name: &str| fs::read_to_string(proc.join("net").join(name)).unwrap_or_default();
        let v4 = lines("route");
        let v6 = lines("if_inet6");
        let v4 = v4.lines().filter_map(route);
        Self(v4.chain(v6.lines().filter_map(address)).collect())
    }

    /// Returns the prefix length of the network of `ip` on `netdev`; the longest of several.
    pub(crate) fn prefix(&self, netdev: &str, ip: IpAddr) -> Option<u8> {
        let holds = |network: &&Network| {
            network.netdev == netdev && same_network(network.address, ip, network.prefix)
        };
        self.0.iter().filter(holds).map(|n| n.prefix).max()
    }
}

/// Returns true if two addresses agree in their first `prefix` bits.
pub(crate) fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    a.is_ipv4() == b.is_ipv4() && network_of(a, prefix) == network_of(b, prefix)
}

/// Returns the address with all but its first `prefix` bits cleared.
pub(crate) fn network_of(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let host_bits = 32 - u32::from(prefix.min(32));
            let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
            Ipv4Addr::from(u32::from(ip) & mask).into()
        }
        IpAddr::V6(ip) => {
            let host_bits = 128 - u32::from(prefix.min(128));
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            Ipv6Addr::from(u128::from(ip) & mask).into()
        }
    }
}

/// Parses a line of `net/route` that is a directly connected network.
fn route(line: &str) -> Option<Network> {
    const UP: u32 = 1;
    const GATEWAY: u32 = 2;
    const HOST: u32 = 4;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [netdev, destination, _, flags, _, _, _, mask, ..] = fields[..] else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let mask = u32::from(route_address(mask)?);
    // A mask with holes is none.
    if flags & (UP | GATEWAY | HOST) != UP || mask == 0 || mask.leading_ones() != mask.count_ones()
    {
        return None;
    }
    Some(Network {
        netdev: netdev.to_owned(),
        address: route_address(destination)?.into(),
        prefix: u8::try_from(mask.count_ones()).expect("at most 32"),
    })
}

/// Parses an address of `net/route`, which the kernel prints as a number of the host's byte order.
fn route_address(hex: &str) -> Option<Ipv4Addr> {
    let number = u32::from_str_radix(hex, 16).ok()?;
    Some(Ipv4Addr::from(number.to_ne_bytes()))
}

/// Parses a line of `net/if_inet6`: address, interface number, prefix, scope, flags, name; all hexadecimal.
fn address(line: &str) -> Option<Network> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [address, _, prefix, _, _, netdev] = fields[..] else {
        return None;
    };
    let address = u128::from_str_radix(address, 16).ok()?;
    let prefix = u8::from_str_radix(prefix, 16).ok()?;
    Some(Network {
        netdev: netdev.to_owned(),
        address: Ipv6Addr::from(address).into(),
        prefix: prefix.min(128),
    })
}

/// The address of a port, in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

/// The protocol that uses a GID. Only GIDs of one kind can be connected. The order of the variants is the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GidKind {
    /// InfiniBand's own network.
    InfiniBand,
    /// RDMA directly over Ethernet: stays within one link.
    RoceV1,
    /// RDMA over UDP: goes wherever IP goes.
    RoceV2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    InfiniBand,
    /// Ethernet, which RoCE uses.
    Ethernet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Global,
    Link,
    /// Not beyond the host: loopback, or not the address of a single port.
    Nowhere,
}

impl Gid {
    /// Parses `fe80:0000:0000:0000:…`, as sysfs writes it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(Self(text.parse::<Ipv6Addr>().ok()?.octets()))
    }

    /// Returns the IP address of a RoCE GID.
    pub(crate) fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Returns the upper half, which all ports of one InfiniBand subnet share.
    pub(crate) fn subnet_prefix(self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("eight bytes"))
    }

    /// Returns the scope of the IP address of a RoCE GID.
    pub(crate) fn scope(self) -> Scope {
        let ip = self.ip();
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
            Scope::Nowhere
        } else if link_local {
            Scope::Link
        } else {
            Scope::Global
        }
    }

    /// Returns true for the GID of an empty entry of the table.
    pub(crate) fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl GidKind {
    /// Parses `gid_attrs/types/N`, which has one name for InfiniBand and RoCE v1.
    pub(crate) fn parse(text: &str, link: LinkLayer) -> Option<Self> {
        match (text, link) {
            ("IB/RoCE v1", LinkLayer::InfiniBand) => Some(Self::InfiniBand),
            ("IB/RoCE v1", LinkLayer::Ethernet) => Some(Self::RoceV1),
            ("RoCE v2", LinkLayer::Ethernet) => Some(Self::RoceV2),
            _ => None,
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

impl LinkLayer {
    /// Parses the `link_layer` of a port.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "InfiniBand" => Some(Self::InfiniBand),
            "Ethernet" => Some(Self::Ethernet),
            _ => None,
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rdma::ports::fixtures::FakeSystem;

    /// As Linux 6.1 on x86 printed them.
    const ROUTE: &str = "\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
d1	00000000	0100620A	0003	0	0	0	00000000	0	0	0
d1	0000620A	00000000	0001	0	0	0	00FFFFFF	0	0	0
d0	0000630A	00000000	0001	0	0	0	0000FFFF	0	0	0
d0	0000630A	00000000	0001	0	0	0	00FFFFFF	0	0	0
d0	0500630A	00000000	0005	0	0	0	FFFFFFFF	0	0	0
nonsense
d0	xyz	00000000	0001	0	0	0	00FFFFFF	0	0	0
";
    const IF_INET6: &str = "\
fe800000000000007c4a54fffedf8a43 02 40 20 80       d0
00000000000000000000000000000001 01 80 10 80       lo
fd000099000000000000000000000001 02 30 00 80       d0
fd00 02
";

    #[test]
    #[cfg(target_endian = "little")]
    fn prefixes_come_from_routes_and_addresses() {
        let tree = FakeSystem::new();
        tree.write("proc/net/route", ROUTE);
        tree.write("proc/net/if_inet6", IF_INET6);
        let networks = Networks::read(&tree.roots().proc);
        let prefix = |netdev: &str, ip: &str| networks.prefix(netdev, ip.parse().unwrap());
        assert_eq!(prefix("d0", "10.99.0.5"), Some(24));
        assert_eq!(prefix("d0", "10.99.7.5"), Some(16));
        assert_eq!(prefix("d1", "10.98.0.1"), Some(24));
        assert_eq!(prefix("d1", "10.99.0.1"), None);
        assert_eq!(prefix("d0", "fe80::1"), Some(64));
        assert_eq!(prefix("d0", "fd00:99::7"), Some(48));
        assert_eq!(prefix("d1", "fd00:99::7"), None);
    }

    #[test]
    fn without_procfs_nothing_is_known() {
        let networks = Networks::read(Path::new("/nowhere"));
        assert_eq!(networks.prefix("d0", "10.99.0.5".parse().unwrap()), None);
    }

    #[test]
    fn networks_are_compared_bit_by_bit() {
        let same = |a: &str, b: &str, n| same_network(a.parse().unwrap(), b.parse().unwrap(), n);
        assert!(same("10.1.0.1", "10.1.0.254", 24));
        assert!(!same("10.1.0.1", "10.1.1.1", 24));
        assert!(same("10.1.0.1", "11.0.0.0", 0));
        assert!(!same("10.1.0.1", "10.1.0.0", 200));
        assert!(same("fd00::1", "fd00::2", 64));
        assert!(!same("10.1.0.1", "::ffff:a01:1", 0));
    }

    #[test]
    fn a_gid_is_an_ip_address() {
        let ip = |text| Gid::parse(text).unwrap().to_string();
        assert_eq!(ip("0000:0000:0000:0000:0000:ffff:0a63:0001"), "10.99.0.1");
        assert_eq!(
            ip("fe80:0000:0000:0000:7c4a:54ff:fedf:8a43"),
            "fe80::7c4a:54ff:fedf:8a43"
        );
        assert_eq!(Gid::parse("fe80"), None);
        assert_eq!(Gid::parse(""), None);
    }

    #[test]
    fn the_reach_of_an_address() {
        let scope = |text| Gid::parse(text).unwrap().scope();
        assert_eq!(scope("::ffff:10.1.0.5"), Scope::Global);
        assert_eq!(scope("fd00::5"), Scope::Global);
        assert_eq!(scope("::ffff:169.254.3.4"), Scope::Link);
        assert_eq!(scope("fe80::5"), Scope::Link);
        for nowhere in ["::", "::1", "::ffff:127.0.0.1", "ff02::1", "::ffff:0.0.0.0"] {
            assert_eq!(scope(nowhere), Scope::Nowhere, "{nowhere}");
        }
    }

    #[test]
    fn the_link_layer_tells_infiniband_from_roce_v1() {
        use LinkLayer::{Ethernet, InfiniBand};
        let parse = GidKind::parse;
        assert_eq!(parse("IB/RoCE v1", InfiniBand), Some(GidKind::InfiniBand));
        assert_eq!(parse("IB/RoCE v1", Ethernet), Some(GidKind::RoceV1));
        assert_eq!(parse("RoCE v2", Ethernet), Some(GidKind::RoceV2));
        assert_eq!(parse("RoCE v3", Ethernet), None);
    }
}
