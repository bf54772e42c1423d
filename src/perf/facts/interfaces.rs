//! The interfaces with an address that other hosts may use.

use std::net::IpAddr;

use super::host_roots::{HostRoots, decimal};
use crate::{perf::messages::AddressFacts, reach};

/// The most addresses that are reported: a host with many containers has hundreds.
const MAX_ADDRESS_FACTS: usize = 64;

/// Returns the addresses of this host that are neither loopback nor link-local, each with its interface.
pub(super) fn read(roots: &HostRoots) -> Vec<AddressFacts> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let usable = interfaces
        .iter()
        .filter(|interface| !reach::usable([interface.ip()]).is_empty());
    let facts = usable.map(|interface| AddressFacts {
        mtu: mtu(roots, &interface.name).unwrap_or(0),
        rate_mbps: rate(roots, &interface.name),
        address: interface.ip(),
        netdev: interface.name.clone(),
    });
    facts.take(MAX_ADDRESS_FACTS).collect()
}

/// Returns the name of the interface that has this address.
pub(in crate::perf) fn netdev_of(address: IpAddr) -> Option<String> {
    let interfaces = if_addrs::get_if_addrs().ok()?;
    let address = address.to_canonical();
    let owner = interfaces
        .into_iter()
        .find(|interface| interface.ip() == address);
    owner.map(|interface| interface.name)
}

/// Returns the MTU of an interface in bytes.
pub(in crate::perf) fn mtu(roots: &HostRoots, netdev: &str) -> Option<u32> {
    decimal(&roots.sys.join("class/net").join(netdev).join("mtu"))
}

/// Returns the rate of an interface in Mbit/s. Drivers that do not know it say -1, or nothing. A virtual interface has
/// no rate: veth says 10 Gbit/s whatever it carries.
fn rate(roots: &HostRoots, netdev: &str) -> Option<u32> {
    let interface = roots.sys.join("class/net").join(netdev);
    let is_real = ["device", "bonding"]
        .iter()
        .any(|part| interface.join(part).exists());
    let rate = decimal::<u32>(&interface.join("speed"));
    rate.filter(|rate| *rate > 0 && is_real)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_interface_has_an_mtu_and_a_driver_may_say_its_rate() {
        let tree = tempfile::tempdir().unwrap();
        let roots = HostRoots::below(tree.path());
        for (netdev, speed) in [
            ("eth0", "25000\n"),
            ("eth1", "-1\n"),
            ("veth0", "10000\n"),
            ("lo", ""),
        ] {
            let directory = roots.sys.join("class/net").join(netdev);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("mtu"), "9000\n").unwrap();
            fs::write(directory.join("speed"), speed).unwrap();
            if netdev.starts_with("eth") {
                fs::create_dir(directory.join("device")).unwrap();
            }
        }
        assert_eq!(mtu(&roots, "eth0"), Some(9000));
        assert_eq!(mtu(&roots, "eth2"), None);
        assert_eq!(rate(&roots, "eth0"), Some(25_000));
        assert_eq!(rate(&roots, "eth1"), None);
        assert_eq!(rate(&roots, "veth0"), None);
        assert_eq!(rate(&roots, "lo"), None);
    }

    #[test]
    fn the_loopback_interface_is_found_and_not_reported() {
        let lo = netdev_of("127.0.0.1".parse().unwrap());
        assert!(lo.is_some());
        assert_eq!(netdev_of("192.0.2.1".parse().unwrap()), None);
        let facts = read(&HostRoots::default());
        assert!(facts.iter().all(|facts| !facts.address.is_loopback()));
    }
}
