//! The port and the parameters of a queue pair, and the choice of a port among those of this host.

use std::io;

use crate::{
    config::RdmaConfig,
    transport::rdma::ports::{choice::DeviceChoice, recent::inventory},
};

/// The port and the parameters of a queue pair. Both ends agree on the MTU and on the packet sequence numbers before they connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// The name of the device.
    pub device: String,
    /// The number of the port, from 1.
    pub port: u8,
    /// The index in the GID table of the port.
    pub gid_index: usize,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096, the smaller of both ends. Other values are rounded down.
    pub mtu: u32,
    /// The first packet sequence number of this end. Only its lowest 24 bits are used.
    pub send_psn: u32,
    /// The first packet sequence number of the peer, 24 bits: the peer's `send_psn`.
    pub receive_psn: u32,
    /// The most work requests of each kind at once, of a link. Other queue pairs have sizes of their own.
    pub(crate) depth: u32,
    /// The traffic class of each packet.
    pub traffic_class: u8,
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// The index in the partition key table.
    pub pkey_index: u16,
}

impl QueuePairConfig {
    /// Chooses the port that a stream would offer first: of the usable ports, the fastest hardware, with the best address of its
    /// GID table. `device`, `port`, `gid_index` and `pkey_index` of `config` restrict the choice, and `traffic_class` and
    /// `service_level` mark the packets. The largest MTU of the port and a random packet sequence number are set.
    ///
    /// The choice knows nothing of the peer. On hosts in several networks both ends name the device.
    ///
    /// # Errors
    ///
    /// No port can be used ([`io::ErrorKind::NotFound`]), with the reason as one sentence.
    pub fn choose(config: &RdmaConfig) -> io::Result<Self> {
        let candidates = DeviceChoice::from(config).candidates(&inventory());
        let candidates =
            candidates.map_err(|reason| io::Error::new(io::ErrorKind::NotFound, reason))?;
        let first = candidates
            .into_iter()
            .next()
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(Self {
            device: first.device,
            port: first.port,
            gid_index: usize::from(first.gid_index),
            mtu: u32::from(first.offer.mtu),
            send_psn: random_psn(),
            receive_psn: 0,
            depth: 0,
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            pkey_index: config.pkey_index,
        })
    }
}

/// Returns a random packet sequence number of 24 bits, so that a packet of an old connection does not match.
pub(crate) fn random_psn() -> u32 {
    let mut bytes = [0; 4];
    // Without random numbers there is no control connection either.
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes) >> 8
}
