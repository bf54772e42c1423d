//! The port of a queue pair, chosen from those of this host.

use std::io;

use crate::{
    config::RdmaConfig,
    transport::rdma::{
        link::QueuePairConfig,
        ports::{choice::DeviceChoice, recent::inventory},
    },
};

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
