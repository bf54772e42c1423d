//! The RDMA ports of one end: in this process, and as they are sent to the peer.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    device::{Device, GidEntry, MTUS, Port, mtu_within},
    gid::{Gid, GidKind},
};

/// The most addresses that one end offers: enough for eight ports with an address of each family.
pub(crate) const MAX_OFFERS: usize = 16;

/// One port under one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The device's name.
    pub(crate) device: String,
    /// The port's number.
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
    /// True for a software device.
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

    /// Returns all offers.
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
