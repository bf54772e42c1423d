//! The setup of a link: a queue pair and its pools, planned, opened, connected and proved.

use std::{future::poll_fn, io, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    express::{
        path::{ExpressOffer, ExpressPath, ExpressSettings, UnconnectedExpress},
        queue::RingLayout,
    },
    link::{
        Endpoint, Link, MemoryAccess, Posting, Region, SlotToken, UnconnectedQueuePair, WorkRequest,
    },
    nudge::Nudge,
    pool::{PoolPlan, RdmaSlot},
    receive_path, send_path,
    verbs::queue_pair::QueuePairConfig,
};
use crate::{
    Direction,
    faults::Faults,
    transport::control::seal::{StreamSeal, Way},
};

/// The parameters of every link of a rail: of the first link, and of those that replace it.
pub(crate) struct LinkPlan {
    /// The pairs of ports that the rail may use: first the pair of the next link. There is at least one.
    pub(super) ports: Vec<LinkPorts>,
    pub(super) direction: Direction,
    pub(super) pool: PoolPlan,
    /// The pools with which the next link begins.
    pub(super) first_pools: FirstPools,
    pub(super) renew_after: u64,
    /// The memory of the express path; `None` if the stream has no express path.
    pub(super) ring: Option<RingLayout>,
    /// How long a wait for a small frame polls, if the user has chosen.
    pub(super) busy_poll: Option<Duration>,
    pub(super) faults: Faults,
    /// What seals the reports of the express paths.
    pub(super) seal: StreamSeal,
}

/// The pools of this end with which a link begins. The others are registered when a frame needs them: see
/// [`renewal`](super::renewal).
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstPools {
    pub(super) send: bool,
    pub(super) receive: bool,
}

/// The parameters of a link over one pair of ports.
pub(super) struct LinkPorts {
    pub(super) name: String,
    /// The advice for the user when no frame crosses the link.
    pub(super) remedy: &'static str,
    pub(super) queue_pair: QueuePairConfig,
    pub(super) posting: Posting,
}

impl LinkPlan {
    /// Returns the pair of ports of the next link.
    pub(super) fn ports(&self) -> &LinkPorts {
        &self.ports[0]
    }

    /// Returns true if the rail may use more than one pair of ports.
    pub(super) fn has_other_ports(&self) -> bool {
        self.ports.len() > 1
    }

    /// Plans the next link over the next pair of ports. The peer has the same pairs in the same order.
    pub(super) fn turn_ports(&mut self) {
        self.ports.rotate_left(1);
    }

    /// Reports that the rail has a link over other ports than `before`.
    pub(super) fn report_move(&self, before: &str) {
        let now = &self.ports().name;
        if now != before {
            tracing::debug!("the link over {before} is lost, and its rail goes on over {now}");
        }
    }

    /// Makes a queue pair and registers its first pools. `generation` counts the links of the stream. With `has_express`
    /// it makes the express path as well, if that is possible.
    pub(super) fn open(
        &self,
        generation: u32,
        has_express: bool,
    ) -> Result<UnconnectedLink, String> {
        let LinkPorts {
            queue_pair,
            posting,
            ..
        } = self.ports();
        let queue_pair = QueuePairConfig {
            send_psn: later(queue_pair.send_psn, generation),
            receive_psn: later(queue_pair.receive_psn, generation),
            ..queue_pair.clone()
        };
        let failed =
            |what: &str, error: io::Error| format!("{what} {}: {error}", queue_pair.device);
        let link = UnconnectedQueuePair::build(&queue_pair, *posting);
        let link = link.map_err(|error| failed("cannot open", error))?;
        let pool = |is_first: bool, reach| {
            let slots = is_first.then(|| self.pool.register(link.owner(), reach, generation));
            let slots = slots.unwrap_or_else(|| Ok(Vec::new()));
            slots.map_err(|error| failed("cannot register memory with", error))
        };
        let FirstPools { send, receive } = self.first_pools;
        let send = pool(send && self.direction.sends(), MemoryAccess::Local)?;
        let receive = pool(receive && self.direction.receives(), MemoryAccess::Remote)?;
        let nudge_page = link
            .owner()
            .register(NUDGE_BYTES, MemoryAccess::Remote)
            .map_err(|error| failed("cannot register memory with", error))?;
        let ring = self.ring.filter(|_| has_express);
        let express = ring.and_then(|ring| {
            // Registered last: without it the stream still works.
            let express = UnconnectedExpress::open(&queue_pair, ring);
            express
                .inspect_err(|error| tracing::debug!(%error, "no express path"))
                .ok()
        });
        Ok(UnconnectedLink {
            link,
            direction: self.direction,
            pool: self.pool,
            send,
            receive,
            nudge_page,
            express,
            generation,
            busy_poll: self.busy_poll,
            seal: self.seal.clone(),
            faults: self.faults,
        })
    }
}

/// The memory into which the peer writes its nudges, in bytes: whole pages are pinned in any case.
const NUDGE_BYTES: usize = 4096;

/// Returns the first sequence number of a later link. It differs from that of the link before, so that a late packet
/// does not match.
fn later(psn: u32, generation: u32) -> u32 {
    psn.wrapping_add(generation.wrapping_mul(0x1_0001)) & 0xff_ffff
}

/// One end's part of a link, as the peer receives it: the address of the queue pair, and the slots to write.
#[derive(Serialize, Deserialize)]
pub(super) struct LinkOffer {
    pub(super) endpoint: Endpoint,
    /// The number of slots of the receive pool; 0 if this end does not receive.
    pub(super) depth: u32,
    /// The slots, or none if they are registered when a frame needs them.
    pub(super) slots: Vec<SlotToken>,
    pub(super) nudge_page: SlotToken,
    /// The express path, if this end has one.
    pub(super) express: Option<ExpressOffer>,
}

impl LinkOffer {
    /// Returns the number of slots of the peer that this end may write, now or later.
    /// Fails if a pool cannot have so many, or if the list has some of them only.
    pub(super) fn peer_slots(&self) -> Result<usize, String> {
        let depth = self.depth as usize;
        let has_all = self.slots.is_empty() || self.slots.len() == depth;
        if depth > MAX_RDMA_DEPTH || !has_all {
            return Err("the other end's list of slots is too long or incomplete".to_owned());
        }
        Ok(depth)
    }
}

/// The most slots of a pool. Their tokens, of some 20 bytes each, fit into one message.
pub(super) const MAX_RDMA_DEPTH: usize = 2048;

/// A queue pair that is not connected yet, and its pools.
pub(super) struct UnconnectedLink {
    link: UnconnectedQueuePair,
    direction: Direction,
    pool: PoolPlan,
    send: Vec<RdmaSlot>,
    receive: Vec<RdmaSlot>,
    nudge_page: Region,
    express: Option<UnconnectedExpress>,
    generation: u32,
    busy_poll: Option<Duration>,
    seal: StreamSeal,
    faults: Faults,
}

impl UnconnectedLink {
    /// Returns this end's part of the link, for the peer.
    pub(super) fn part(&self) -> LinkOffer {
        let receives = self.direction.receives();
        LinkOffer {
            endpoint: self.link.endpoint(),
            depth: if receives { self.pool.depth } else { 0 },
            slots: self.receive.iter().filter_map(RdmaSlot::token).collect(),
            nudge_page: self.nudge_page.token(),
            express: self.express.as_ref().map(UnconnectedExpress::offer),
        }
    }

    /// Connects to the peer's queue pair.
    pub(super) async fn connect(self, theirs: LinkOffer) -> Result<ConnectedLink, String> {
        let peer_slots = theirs.peer_slots()?;
        if (peer_slots > 0) != self.direction.sends() {
            return Err("the other end has no slots to write to, or too many".to_owned());
        }
        let connected = self.link.connect(theirs.endpoint).await;
        let link = connected.map_err(|error| format!("cannot connect the queue pairs: {error}"))?;
        let express = match (self.express, theirs.express) {
            (Some(express), Some(theirs)) => {
                let reports =
                    [Way::Out, Way::In].map(|way| self.seal.reports(way, self.generation));
                let settings = ExpressSettings {
                    generation: self.generation,
                    busy_poll: self.busy_poll,
                    reports,
                    faults: self.faults,
                };
                let connected = express.connect(theirs, settings);
                let failed = |error| format!("cannot connect the express path: {error}");
                Some(Arc::new(connected.map_err(failed)?))
            }
            _ => None,
        };
        Ok(ConnectedLink {
            nudge: Nudge::new(link.clone(), self.nudge_page, theirs.nudge_page),
            link,
            direction: self.direction,
            pool: self.pool,
            generation: self.generation,
            peer: PeerPool {
                depth: peer_slots,
                slots: theirs.slots,
            },
            send: self.send,
            receive: self.receive,
            express,
            faults: self.faults,
        })
    }
}

/// The receive pool of the peer.
pub(super) struct PeerPool {
    /// The number of slots that it has, or will have.
    pub(super) depth: usize,
    /// The slots, or none if they are not registered yet.
    pub(super) slots: Vec<SlotToken>,
}

/// A connected queue pair, and its pools.
pub(super) struct ConnectedLink {
    nudge: Nudge,
    link: Link,
    direction: Direction,
    pool: PoolPlan,
    generation: u32,
    peer: PeerPool,
    send: Vec<RdmaSlot>,
    receive: Vec<RdmaSlot>,
    express: Option<Arc<ExpressPath>>,
    faults: Faults,
}

impl ConnectedLink {
    /// Posts the receive for the frame that proves the link, if this end receives.
    pub(super) fn expect_proof(&self) -> Option<WorkRequest<io::Result<()>>> {
        self.direction.receives().then(|| self.link.receive())
    }

    /// Proves the link: sends one byte as a frame is sent, and waits for that of the peer, in the directions of the
    /// stream.
    pub(super) async fn prove(
        &mut self,
        expected: Option<WorkRequest<io::Result<()>>>,
    ) -> Result<(), String> {
        let nudge = &mut self.nudge;
        if self.direction.sends() {
            let mut proof = nudge.prove();
            let written = nudge.beside(poll_fn(|cx| proof.poll(cx))).await;
            written.map_err(|error| format!("nothing gets through: {error}"))?;
        }
        if let Some(mut expected) = expected {
            let arrived = nudge.beside(poll_fn(|cx| expected.poll(cx))).await;
            arrived.map_err(|error| format!("nothing arrives: {error}"))?;
        }
        Ok(())
    }

    /// Returns the parts of the link, ready for use.
    pub(super) fn into_live(self) -> LiveLink {
        let Self {
            nudge,
            link,
            direction,
            pool,
            generation,
            peer,
            send,
            receive,
            express,
            faults,
        } = self;
        let send = direction.sends().then(|| {
            let own = send_path::SendPool::new(pool, generation, send);
            let is_one_way = !direction.receives();
            let express = express.clone();
            send_path::SendLink::new(link.clone(), own, peer, express, is_one_way, faults)
        });
        let receive = direction
            .receives()
            .then(|| receive_path::ReceiveLink::new(link, receive, express));
        LiveLink {
            nudge,
            send,
            receive,
        }
    }
}

/// A connected queue pair in use: the parts for the two sides of the data path, and for the nudges.
pub(super) struct LiveLink {
    pub(super) nudge: Nudge,
    /// `None` in a stream that only receives.
    pub(super) send: Option<send_path::SendLink>,
    /// `None` in a stream that only sends.
    pub(super) receive: Option<receive_path::ReceiveLink>,
}

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, and memory does not fail")
}

/// Decodes a step of the peer.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    postcard::from_bytes(bytes)
        .map_err(|_| "the RDMA offer of the other end cannot be decoded".to_owned())
}
