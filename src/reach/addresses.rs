//! The addresses of this host.

use std::{env, net::IpAddr};

/// Returns the addresses of this host that another host can use. The first is the address at which ssh reached
/// this host, if there is one; IPv4 addresses follow, then IPv6 addresses.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let interfaces = interfaces.iter().map(if_addrs::Interface::ip);
    let connection = env::var("SSH_CONNECTION").unwrap_or_default();
    ranked(interfaces.collect(), server_address(&connection))
}

/// Returns the address at which ssh reached this host, from the text of `SSH_CONNECTION`: the client's address
/// and port, then the server's.
fn server_address(connection: &str) -> Option<IpAddr> {
    let address = connection.split(' ').nth(2)?.parse::<IpAddr>().ok()?;
    Some(address.to_canonical())
}

/// Returns the addresses that another host can use: `first`, then IPv4, then IPv6.
///
/// `first` is left out if no interface has it: programs that run elsewhere, in a container for example, inherit
/// `SSH_CONNECTION` too.
fn ranked(interfaces: Vec<IpAddr>, first: Option<IpAddr>) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in interfaces {
        if is_reachable(address) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.sort_by_key(|address| (Some(*address) != first, address.is_ipv6()));
    addresses
}

fn is_reachable(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect()
    }

    #[test]
    fn the_address_that_ssh_used_comes_first() {
        let all = "127.0.0.1 fd00::1 192.168.0.1 ::1 10.0.0.1 169.254.0.9 fe80::1 10.0.0.1";
        let first = server_address("10.0.0.9 4711 10.0.0.1 22");
        let ranking = ranked(addresses(all), first);
        assert_eq!(ranking, addresses("10.0.0.1 192.168.0.1 fd00::1"));
        let mapped = server_address("::ffff:10.0.0.9 4711 ::ffff:10.0.0.1 22");
        assert_eq!(mapped, first);
    }

    #[test]
    fn an_address_from_elsewhere_is_left_out() {
        let here = addresses("192.168.0.1");
        for connection in ["", "nonsense", "a b c d", "10.0.0.9 4711 10.0.0.1 22"] {
            assert_eq!(ranked(here.clone(), server_address(connection)), here);
        }
    }

    #[test]
    fn what_is_told_can_be_reached() {
        assert!(
            super::addresses()
                .iter()
                .all(|address| is_reachable(*address))
        );
    }
}
