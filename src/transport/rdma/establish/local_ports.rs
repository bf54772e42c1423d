//! The RDMA ports of this end, and the attempts over the pairs of ports that were proposed.

use std::thread;

use super::{Established, ProofBudget, attempt, in_turn};
#[cfg(feature = "cli")]
use crate::transport::rdma::memlock::PinDemand;
use crate::{
    DeviceFault, Direction, Error, HandshakeFault, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, MIN_DEPTH,
    RdmaConfig, StreamConfig, TransportPolicy,
    faults::{self, Faults},
    transport::{
        control::{connection::Control, noise::Role, terms::Agreement},
        rdma::{
            express::queue::RingLayout,
            link::Posting,
            link_setup::{LinkPlan, decode, encode},
            memlock::{Memlock, fit, why_smaller},
            ports::{
                choice::{DeviceChoice, NoRdma, no_pair_works, remedy},
                device::{self, Inventory},
                offer::Candidate,
                proposal::{PortPair, PortsOffer, Proposal},
            },
            unavailable::Unavailable,
            verbs::queue_pair::{QueuePairConfig, random_psn},
        },
    },
};

/// The most slots of a pool. Their tokens, of some 20 bytes each, fit into one message.
const MAX_RDMA_DEPTH: usize = 2048;

/// The most small frames under way. Each has 4 KiB of memory at each end.
const MAX_SMALL_FRAMES: u32 = 1024;

/// The RDMA ports of this end that may be used, and the pool that fits.
pub(crate) struct LocalPorts {
    candidates: Vec<Candidate>,
    chunk_bytes: usize,
    depth: usize,
    /// The reason why the pool is smaller than requested, if it is.
    smaller_pool_reason: Option<String>,
    /// What the user has set.
    config: RdmaConfig,
    /// Received chunks are copied to memory that the peer cannot write.
    copies: bool,
    /// The number of small frames that may be under way; 0 without an express lane.
    small_frames: u32,
    faults: Faults,
}

impl LocalPorts {
    /// Reads the ports of this host, and how much memory may be pinned for a stream.
    ///
    /// # Errors
    ///
    /// The reason why this host cannot use RDMA.
    pub(crate) fn discover(config: &StreamConfig) -> Result<Self, Unavailable> {
        Self::among(&device::inventory(), config)
    }

    /// Takes the ports from `inventory`, in place of those of this host.
    pub(crate) fn among(inventory: &Inventory, config: &StreamConfig) -> Result<Self, Unavailable> {
        let hardware = inventory.ports().next().is_some();
        let unavailable = |reason: String| Unavailable { reason, hardware };
        let candidates = DeviceChoice::from(&config.rdma).candidates(inventory);
        let candidates = candidates.map_err(|none| unavailable(none.to_string()))?;
        let (chunk_bytes, depth) = wanted_pool(config);
        let mut memlock = Memlock::now();
        let small_frames = config.rdma.small_frames.min(MAX_SMALL_FRAMES);
        let has_lane = small_frames > 0 && memlock.reserve_lane(lane_bytes(small_frames));
        let smaller_pool_reason = why_smaller(chunk_bytes, depth, config.direction, &memlock);
        let fitting = fit(chunk_bytes, depth, config.direction, &memlock);
        let (chunk_bytes, depth) = fitting.map_err(|small| unavailable(small.to_string()))?;
        Ok(Self {
            candidates,
            chunk_bytes,
            depth,
            smaller_pool_reason,
            config: config.rdma.clone(),
            copies: config.copy_received,
            small_frames: if has_lane { small_frames } else { 0 },
            faults: faults::of(config),
        })
    }

    /// Returns how much memory one end of a stream with these settings pins, whatever this process may pin.
    #[cfg(feature = "cli")]
    pub(crate) fn demand(config: &StreamConfig) -> PinDemand {
        let (chunk_bytes, depth) = wanted_pool(config);
        let small_frames = config.rdma.small_frames.min(MAX_SMALL_FRAMES);
        let lane = (small_frames > 0).then(|| lane_bytes(small_frames));
        PinDemand::new(chunk_bytes, depth, config.direction, lane)
    }

    /// Reports early what would fail in every handshake: a named device that does not exist, or no usable device with
    /// the policy `Rdma`.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub(crate) fn check(config: &StreamConfig) -> Result<(), Error> {
        let free_choice = DeviceChoice::from(&config.rdma) == DeviceChoice::default();
        match config.transport {
            TransportPolicy::Tcp => return Ok(()),
            // Nothing can be wrong, and to read sysfs takes a thousand system calls.
            TransportPolicy::Auto if free_choice => return Ok(()),
            _ => {}
        }
        let inventory = device::inventory();
        match DeviceChoice::from(&config.rdma).candidates(&inventory) {
            Err(NoRdma::Choice(reason)) => {
                let fault = DeviceFault::Choice;
                return Err(Error::Device { fault, reason });
            }
            _ if config.transport == TransportPolicy::Auto => return Ok(()),
            Err(NoRdma::Unusable(reason)) => {
                let fault = DeviceFault::Unusable;
                return Err(Error::Device { fault, reason });
            }
            Ok(_) => {}
        }
        // There are ports, so that only memory can be missing.
        Self::among(&inventory, config).map(drop).map_err(|none| {
            let (fault, reason) = (DeviceFault::Memlock, none.reason);
            Error::Device { fault, reason }
        })
    }

    /// Encodes the ports for the peer.
    pub(crate) fn offer(&self) -> Vec<u8> {
        encode(&PortsOffer::of(&self.candidates, self.chunk_bytes))
    }

    /// Proposes pairs of this end's and the dialer's ports, as the acceptor.
    ///
    /// # Errors
    ///
    /// The reason why no pair of ports can work.
    pub(crate) fn propose(&self, theirs: &[u8]) -> Result<Vec<u8>, String> {
        let theirs: PortsOffer = decode(theirs)?;
        let proposal = Proposal::new(&self.candidates, self.chunk_bytes, &theirs, || {
            [random_psn(), random_psn()]
        })?;
        Ok(encode(&proposal))
    }

    /// Tries the proposed pairs of ports one after the other, until a frame has crossed a queue pair.
    ///
    /// # Errors
    ///
    /// The outer error is that of the control connection. The inner error is the reason why no pair works; both ends
    /// know it.
    pub(crate) async fn establish(
        &self,
        control: &mut Control,
        proposal: &[u8],
        role: Role,
        agreement: &Agreement,
    ) -> Result<Result<Established, String>, HandshakeFault> {
        let malformed = |_| HandshakeFault::Protocol("a choice of ports that cannot be decoded");
        let proposal: Proposal = decode(proposal).map_err(malformed)?;
        let work = Box::pin(self.try_pairs(control, &proposal, role, agreement));
        match role {
            Role::Dialer => work.await,
            Role::Acceptor => in_turn(work).await,
        }
    }

    async fn try_pairs(
        &self,
        control: &mut Control,
        proposal: &Proposal,
        role: Role,
        agreement: &Agreement,
    ) -> Result<Result<Established, String>, HandshakeFault> {
        let mut budget = ProofBudget::new();
        let mut reasons = Vec::new();
        for (pair, left) in proposal.pairs.iter().zip((1..=proposal.pairs.len()).rev()) {
            budget.share = u32::try_from(left).unwrap_or(u32::MAX);
            let plan = self.plan(pair, role, agreement);
            let attempt = attempt(control, plan, &mut budget);
            match attempt.await? {
                Ok((plan, connected)) => {
                    let first_failure = reasons.first();
                    let established = Established::new(
                        plan,
                        connected,
                        first_failure,
                        self.smaller_pool_reason.clone(),
                    );
                    return Ok(Ok(established));
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Ok(Err(no_pair_works(&reasons, proposal.doubt.as_deref())))
    }

    /// Plans a link over one pair of ports.
    pub(in crate::transport::rdma) fn plan(
        &self,
        pair: &PortPair,
        role: Role,
        agreement: &Agreement,
    ) -> Result<LinkPlan, String> {
        let (number, send_psn, receive_psn) = match role {
            Role::Dialer => (pair.dialer, pair.dialer_psn, pair.acceptor_psn),
            Role::Acceptor => (pair.acceptor, pair.acceptor_psn, pair.dialer_psn),
        };
        let candidate = self.candidates.get(usize::from(number));
        let candidate = candidate.ok_or("a port that was not offered")?;
        let chunk_bytes = (pair.chunk_bytes as usize).min(self.chunk_bytes);
        if chunk_bytes < MIN_CHUNK_BYTES {
            return Err("a chunk size below the least".to_owned());
        }
        let depth = u32::try_from(self.depth).map_err(|error| error.to_string())?;
        let queue_pair = QueuePairConfig {
            device: candidate.device.clone(),
            port: candidate.port,
            gid_index: usize::from(candidate.gid_index),
            mtu: u32::from(pair.mtu),
            send_psn,
            receive_psn,
            depth,
            traffic_class: self.config.traffic_class,
            service_level: self.config.service_level,
            pkey_index: self.config.pkey_index,
        };
        Ok(LinkPlan {
            remedy: remedy(candidate.offer.kind),
            name: format!("{candidate}, MTU {}", pair.mtu),
            queue_pair,
            direction: agreement.direction,
            chunk_bytes,
            depth,
            renew_after: self.config.renew_after,
            copies: self.copies,
            ring: (self.small_frames > 0).then(|| {
                let direction = agreement.direction;
                RingLayout::new(self.small_frames, direction.sends(), direction.receives())
            }),
            busy_poll: self.config.busy_poll,
            faults: self.faults,
            posting: posting(agreement.direction, candidate.offer.software),
        })
    }
}

/// Returns the chunk size and the depth that the settings ask for.
fn wanted_pool(config: &StreamConfig) -> (usize, usize) {
    let RdmaConfig {
        chunk_bytes, depth, ..
    } = config.rdma;
    (
        chunk_bytes.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES),
        depth.clamp(MIN_DEPTH, MAX_RDMA_DEPTH),
    )
}

/// Returns the memory of an express lane of a two-way stream, in bytes.
fn lane_bytes(small_frames: u32) -> usize {
    RingLayout::new(small_frames, true, true).bytes()
}

/// Chooses the thread that posts writes. With a software device, posting takes as long as the device's work; on a
/// machine with several processors the sender fills its next chunk meanwhile. With hardware, posting takes less time
/// than to wake another thread.
fn posting(direction: Direction, software: bool) -> Posting {
    let is_parallel = || thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if software && direction.sends() && is_parallel() {
        Posting::Thread
    } else {
        Posting::Inline
    }
}
