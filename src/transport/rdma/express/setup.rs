//! The lane while it is being set up: opened, offered to the peer, connected.

use std::{io, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    lane::ExpressLane,
    queue::{ExpressQueue, PeerWindows, queue_sizes},
    ring::RingLayout,
};
use crate::{
    faults::Faults,
    transport::rdma::verbs::{
        completions::CompletionQueue,
        device::ProtectionDomain,
        memory::MemoryRegion,
        queue_pair::{QueuePair, QueuePairAddress},
        queue_pair_config::QueuePairConfig,
    },
};

/// One end's part of a lane, as the peer receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::transport::rdma) struct ExpressOffer {
    address: QueuePairAddress,
    /// The frames for which this end has memory.
    windows: PeerWindows,
}

/// A lane that is not connected yet. Its receives are posted.
pub(in crate::transport::rdma) struct UnconnectedLane {
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    config: QueuePairConfig,
    ring: RingLayout,
    offer: ExpressOffer,
}

impl UnconnectedLane {
    /// Opens the device, and makes a queue pair with the memory of `ring`.
    ///
    /// # Errors
    ///
    /// Those of the device, or the memory cannot be pinned.
    pub(in crate::transport::rdma) fn open(
        config: &QueuePairConfig,
        ring: RingLayout,
    ) -> io::Result<Self> {
        let domain = Arc::new(ProtectionDomain::open(&config.device)?);
        let memory = MemoryRegion::register(&domain, ring.bytes())?;
        let sizes = queue_sizes(ring);
        let completions = Arc::new(CompletionQueue::new(&domain, sizes.sends + sizes.receives)?);
        let mut pair = QueuePair::new(&completions, memory, config, sizes)?;
        for index in 0..ring.posted_receives() {
            pair.post_receive(u64::from(index), &ring.receive(index))?;
        }
        let address = pair.address(config)?;
        Ok(Self {
            pair,
            completions,
            config: config.clone(),
            ring,
            offer: ExpressOffer {
                address,
                windows: PeerWindows {
                    sends: ring.sends,
                    receives: ring.receives,
                },
            },
        })
    }

    /// Returns this end's part of the lane, for the peer.
    pub(in crate::transport::rdma) fn offer(&self) -> ExpressOffer {
        self.offer
    }

    /// Connects to the peer's lane. `generation` counts the links of the stream.
    ///
    /// # Errors
    ///
    /// The two ends do not match.
    pub(in crate::transport::rdma) fn connect(
        mut self,
        theirs: ExpressOffer,
        generation: u32,
        busy_poll: Option<Duration>,
        faults: Faults,
    ) -> io::Result<ExpressLane> {
        if (self.ring.sends > 0) != (theirs.windows.receives > 0) {
            return Err(io::Error::other("the other end receives no small frames"));
        }
        self.pair.connect(&self.config, theirs.address)?;
        let queue = ExpressQueue::new(self.pair, self.ring, theirs.windows, generation, faults);
        ExpressLane::new(queue, &self.completions, busy_poll)
    }
}
