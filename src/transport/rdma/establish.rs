//! From two lists of ports to a queue pair that a message has crossed.
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {offer}               ───────────►
//!                               ◄───────────   Welcome {proposal}: the best pairs, sequence numbers
//!   Step: endpoint, slots       ◄──────────►   Step: endpoint, slots
//!   Step: connected             ◄──────────►   Step: connected
//!                 one frame each way that bytes will travel
//!   Step: it arrived            ◄──────────►   Step: it arrived
//! ```
//!
//! Either end may say at each step why it cannot go on; then both try the next pair that was proposed,
//! from its first step. After the last one both use TCP, or neither does.

use std::thread;

use super::{
    attempt::{ProofBudget, attempt},
    established::Established,
    link::{Posting, QueuePairConfig},
    link_setup::LinkPlan,
    memlock::{Memlock, fit, why_smaller},
    ports::{
        choice::{DeviceChoice, NoRdma},
        device::Inventory,
        explain::{no_pair_works, remedy},
        offer::Candidate,
        proposal::{PortPair, PortsOffer, Proposal},
        sysfs::Roots,
    },
    steps::{decode, encode},
    unavailable::Unavailable,
};
use crate::{
    Direction, Error, HandshakeFault, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, MIN_DEPTH, RdmaConfig,
    StreamConfig, TransportPolicy,
    transport::control::{codec::Control, terms::Agreement},
};

/// Most slots of a pool: their tokens, of some 20 bytes each, fit into one message.
const MAX_RDMA_DEPTH: usize = 2048;

/// This end's ways over RDMA.
pub(crate) struct LocalPorts {
    candidates: Vec<Candidate>,
    chunk_bytes: usize,
    depth: usize,
    /// Why the pool is smaller than was wanted, if it is.
    smaller: Option<String>,
    marks: RdmaConfig,
}

impl LocalPorts {
    /// This machine's ways, and the pool that may be pinned for a stream.
    ///
    /// # Errors
    ///
    /// Why there is none, in words.
    pub(crate) fn discover(config: &StreamConfig) -> Result<Self, Unavailable> {
        Self::among(&Inventory::read(&Roots::default()), config)
    }

    fn among(inventory: &Inventory, config: &StreamConfig) -> Result<Self, Unavailable> {
        let hardware = inventory.ports().next().is_some();
        let no_way = |reason: String| Unavailable { reason, hardware };
        let candidates = choice(config).candidates(inventory);
        let candidates = candidates.map_err(|none| no_way(none.to_string()))?;
        let chunk_bytes = config
            .rdma
            .chunk_bytes
            .clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let depth = config.rdma.depth.clamp(MIN_DEPTH, MAX_RDMA_DEPTH);
        let memlock = Memlock::now();
        let smaller = why_smaller(chunk_bytes, depth, config.direction, &memlock);
        let fitting = fit(chunk_bytes, depth, config.direction, &memlock);
        let (chunk_bytes, depth) = fitting.map_err(|small| no_way(small.to_string()))?;
        Ok(Self {
            candidates,
            chunk_bytes,
            depth,
            smaller,
            marks: config.rdma.clone(),
        })
    }

    /// Finds out early what would only fail later: a device that was asked for and is not there, or
    /// no device where RDMA was insisted on.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub(crate) fn check(config: &StreamConfig) -> Result<(), Error> {
        let free_choice = choice(config) == DeviceChoice::default();
        match config.transport {
            TransportPolicy::Tcp => return Ok(()),
            // Nothing to be wrong about, and a walk through sysfs takes a thousand system calls.
            TransportPolicy::Auto if free_choice => return Ok(()),
            _ => {}
        }
        let inventory = Inventory::read(&Roots::default());
        match choice(config).candidates(&inventory) {
            Err(NoRdma::Choice(reason)) => return Err(Error::Device { reason }),
            _ if config.transport == TransportPolicy::Auto => return Ok(()),
            _ => {}
        }
        Self::among(&inventory, config).map(drop).map_err(|none| {
            let mut reason = none.reason;
            // What is said of memory, says so already.
            if !reason.contains("--transport") {
                reason.push_str("; use --transport auto to take TCP instead");
            }
            Error::Device { reason }
        })
    }

    /// What the peer is told of them.
    pub(crate) fn offer(&self) -> Vec<u8> {
        encode(&PortsOffer::of(&self.candidates, self.chunk_bytes))
    }

    /// The acceptor's choice among the pairs of both ends' ways.
    ///
    /// # Errors
    ///
    /// Why no pair will do, in words.
    pub(crate) fn propose(&self, theirs: &[u8]) -> Result<Vec<u8>, String> {
        let theirs: PortsOffer = decode(theirs)?;
        let proposal = Proposal::new(&self.candidates, self.chunk_bytes, &theirs, random_psns)?;
        Ok(encode(&proposal))
    }

    /// Builds the queue pairs that were proposed, one after the other, until something has crossed one.
    ///
    /// # Errors
    ///
    /// Outside, of the control connection; inside, why there is no queue pair: both ends know then.
    pub(crate) async fn establish(
        &self,
        control: &mut Control,
        proposal: &[u8],
        dialer: bool,
        agreement: &Agreement,
    ) -> Result<Result<Established, String>, HandshakeFault> {
        let nonsense = |_| HandshakeFault::Protocol("a choice of ports that makes no sense");
        let proposal: Proposal = decode(proposal).map_err(nonsense)?;
        let mut budget = ProofBudget::new();
        let mut reasons = Vec::new();
        for (pair, left) in proposal.pairs.iter().zip((1..=proposal.pairs.len()).rev()) {
            budget.share = u32::try_from(left).unwrap_or(u32::MAX);
            let plan = self.plan(pair, dialer, agreement);
            let attempt = attempt(control, plan, &mut budget);
            match attempt.await? {
                Ok((plan, connected)) => {
                    let smaller = self.smaller.clone();
                    let better = reasons.first();
                    return Ok(Ok(Established::new(plan, connected, better, smaller)));
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Ok(Err(no_pair_works(&reasons, proposal.doubt.as_deref())))
    }

    /// What a link between both ends looks like.
    fn plan(
        &self,
        pair: &PortPair,
        dialer: bool,
        agreement: &Agreement,
    ) -> Result<LinkPlan, String> {
        let number = if dialer { pair.dialer } else { pair.acceptor };
        let candidate = self.candidates.get(usize::from(number));
        let candidate = candidate.ok_or("a port that was not offered")?;
        let chunk_bytes = (pair.chunk_bytes as usize).min(self.chunk_bytes);
        if chunk_bytes < MIN_CHUNK_BYTES {
            return Err("a chunk size below the least".to_owned());
        }
        let psns = (pair.dialer_psn, pair.acceptor_psn);
        let (send_psn, receive_psn) = if dialer { psns } else { (psns.1, psns.0) };
        let depth = u32::try_from(self.depth).map_err(|error| error.to_string())?;
        let place = QueuePairConfig {
            device: candidate.device.clone(),
            port: candidate.port,
            gid_index: usize::from(candidate.gid_index),
            mtu: u32::from(pair.mtu),
            send_psn,
            receive_psn,
            depth,
            traffic_class: self.marks.traffic_class,
            service_level: self.marks.service_level,
            pkey_index: self.marks.pkey_index,
        };
        Ok(LinkPlan {
            remedy: remedy(candidate.offer.kind),
            name: format!("{candidate}, MTU {}", pair.mtu),
            place,
            direction: agreement.direction,
            chunk_bytes,
            depth,
            renew_after: self.marks.renew_after,
            posting: posting(agreement.direction, candidate.offer.software),
        })
    }
}

/// Who posts writes. With a device of software that takes as long as its work does, time in which a sender fills
/// its next chunk, if the machine can do two things at once. With hardware it takes less than to wake
/// another thread.
fn posting(direction: Direction, software: bool) -> Posting {
    let is_parallel = || thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if software && direction.sends() && is_parallel() {
        Posting::Thread
    } else {
        Posting::Inline
    }
}

fn choice(config: &StreamConfig) -> DeviceChoice {
    DeviceChoice {
        device: config.rdma.device.clone(),
        port: config.rdma.port,
        gid_index: config.rdma.gid_index,
        pkey_index: config.rdma.pkey_index,
    }
}

/// Two random packet sequence numbers of 24 bits: a packet of a connection that is gone fits no new one.
fn random_psns() -> [u32; 2] {
    let mut bytes = [0; 8];
    // Without random numbers there was no handshake either.
    let _ = getrandom::fill(&mut bytes);
    let psn = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i])) >> 8;
    [psn(0), psn(4)]
}
