//! The networks of this host's interfaces: prefix lengths, from procfs.
//!
//! procfs has no list of IPv4 addresses with their masks, but each such address puts a route for
//! its network into the main table. Where it does not (another table, `noprefixroute`, a /32) the
//! prefix is unknown, and the address counts as one that has to be routed to.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use super::sysfs;

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
        let lines = |name: &str| sysfs::whole(&proc.join("net").join(name)).unwrap_or_default();
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
}
