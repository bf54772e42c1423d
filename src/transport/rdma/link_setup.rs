//! The setup of a link: a queue pair and its pools, planned, opened, connected and proved.

use std::{future::poll_fn, io};

use serde::{Deserialize, Serialize};

use super::{
    link::{
        Endpoint, Link, MemoryAccess, Posting, QueuePairConfig, SlotToken, UnconnectedQueuePair,
        WorkRequest, WriteCompletion,
    },
    pool::{self, RdmaSlot},
    receive_path, send_path,
};
use crate::{Direction, transport::data::path::Slot};

/// The parameters of every link of a stream: of the first link, and of those that replace it.
pub(crate) struct LinkPlan {
    pub(super) name: String,
    /// The advice for the user when no frame crosses the link.
    pub(super) remedy: &'static str,
    pub(super) place: QueuePairConfig,
    pub(super) direction: Direction,
    pub(super) chunk_bytes: usize,
    pub(super) depth: u32,
    pub(super) renew_after: u64,
    pub(super) posting: Posting,
    /// Received chunks are copied to memory that the peer cannot write.
    pub(super) copies: bool,
}

impl LinkPlan {
    /// Makes a queue pair and registers its pools. `generation` counts the links of the stream.
    pub(super) fn open(&self, generation: u32) -> Result<UnconnectedLink, String> {
        let place = QueuePairConfig {
            send_psn: later(self.place.send_psn, generation),
            receive_psn: later(self.place.receive_psn, generation),
            ..self.place.clone()
        };
        let failed = |what: &str, error: io::Error| format!("{what} {}: {error}", place.device);
        let link = UnconnectedQueuePair::build(&place, self.posting);
        let link = link.map_err(|error| failed("cannot open", error))?;
        let pool = |wanted: bool, reach, copies| {
            let depth = if wanted { self.depth } else { 0 };
            pool::register(&link, reach, generation, self.chunk_bytes, depth, copies)
                .map_err(|error| failed("cannot register memory with", error))
        };
        let send = pool(self.direction.sends(), MemoryAccess::Local, false)?;
        let receive = pool(self.direction.receives(), MemoryAccess::Remote, self.copies)?;
        Ok(UnconnectedLink {
            link,
            send,
            receive,
        })
    }
}

/// Returns the first sequence number of a later link. It differs from that of the link before, so that a late packet does
/// not match.
fn later(psn: u32, generation: u32) -> u32 {
    psn.wrapping_add(generation.wrapping_mul(0x1_0001)) & 0xff_ffff
}

/// One end's part of a link, as the peer receives it: the address of the queue pair, and the slots to write.
#[derive(Serialize, Deserialize)]
pub(super) struct LinkOffer {
    pub(super) endpoint: Endpoint,
    pub(super) slots: Vec<SlotToken>,
}

impl LinkOffer {
    /// Returns the number of slots that may be written.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}

/// A queue pair that is not connected yet, and its pools.
pub(super) struct UnconnectedLink {
    link: UnconnectedQueuePair,
    send: Vec<RdmaSlot>,
    receive: Vec<RdmaSlot>,
}

impl UnconnectedLink {
    /// Returns this end's part of the link, for the peer.
    pub(super) fn part(&self) -> LinkOffer {
        LinkOffer {
            endpoint: self.link.endpoint(),
            slots: self.receive.iter().filter_map(RdmaSlot::token).collect(),
        }
    }

    /// Connects to the peer's queue pair.
    pub(super) async fn connect(self, theirs: LinkOffer) -> Result<ConnectedLink, String> {
        if theirs.slots.is_empty() != self.send.is_empty() {
            return Err("the other end has no slots to write to, or too many".to_owned());
        }
        let connected = self.link.connect(theirs.endpoint).await;
        let link = connected.map_err(|error| format!("cannot connect the queue pairs: {error}"))?;
        Ok(ConnectedLink {
            link,
            peer: theirs.slots,
            send: self.send,
            receive: self.receive,
        })
    }
}

/// A connected queue pair, and its pools.
pub(super) struct ConnectedLink {
    link: Link,
    peer: Vec<SlotToken>,
    send: Vec<RdmaSlot>,
    receive: Vec<RdmaSlot>,
}

impl ConnectedLink {
    /// Posts the receive for the frame that proves the link, if this end receives.
    pub(super) fn expect_proof(&self) -> Option<WorkRequest<io::Result<()>>> {
        (!self.receive.is_empty()).then(|| self.link.receive())
    }

    /// Proves the link: sends one frame of one byte, and waits for that of the peer, in the directions of the stream.
    pub(super) async fn prove(
        &mut self,
        expected: Option<WorkRequest<io::Result<()>>>,
    ) -> Result<(), String> {
        if let (Some(slot), Some(peer)) = (self.send.pop(), self.peer.first()) {
            let (index, generation) = (slot.index, slot.generation);
            let bytes = slot.bytes().len();
            let region = slot.into_region().ok_or("a slot without memory")?;
            let mut write = self.link.write(region, 1, *peer);
            let WriteCompletion { result, region } = poll_fn(|cx| write.poll(cx)).await;
            self.send
                .push(RdmaSlot::new(index, generation, region, bytes));
            result.map_err(|error| format!("nothing gets through: {error}"))?;
        }
        if let Some(mut expected) = expected {
            let arrived = poll_fn(|cx| expected.poll(cx)).await;
            arrived.map_err(|error| format!("nothing arrives: {error}"))?;
        }
        Ok(())
    }

    /// Returns the sending and the receiving side, ready for use.
    pub(super) fn into_links(
        self,
    ) -> (
        Option<send_path::SendLink>,
        Option<receive_path::ReceiveLink>,
    ) {
        let Self {
            link,
            peer,
            send,
            receive,
        } = self;
        let sends = (!send.is_empty()).then(|| send_path::SendLink::new(link.clone(), send, peer));
        let receives = (!receive.is_empty()).then(|| receive_path::ReceiveLink::new(link, receive));
        (sends, receives)
    }
}
