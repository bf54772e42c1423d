//! GIDs: the addresses of RDMA ports, in the form of an IPv6 address.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

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

/// The link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet, which RoCE uses.
    Ethernet,
}

/// The scope of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Beyond the link.
    Global,
    /// To the end of the link.
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
