//! Operations as a measurement posts them: WRITE, READ and SEND, on a queue pair whose two completion queues are apart.

use std::{io, mem::zeroed, ops::Range, ptr, sync::Arc};

use rdma_sys as ffi;

use super::{
    check,
    completions::CompletionQueue,
    memory::MemoryRegion,
    queue_pair::{QueuePair, QueuePairAddress, QueueSizes, ReadDepths, create},
    remote_region::RemoteRegion,
};
use crate::transport::rdma::link::QueuePairConfig;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// Writes the bytes into the peer's region.
    Write,
    /// Reads the bytes from the peer's region.
    Read,
    /// Sends the bytes into the receive that the peer has posted.
    Send,
}

/// An operation to post.
#[derive(Debug, Clone)]
pub(crate) struct VerbsOperation {
    pub(crate) kind: OperationKind,
    /// The number that its completion has.
    pub(crate) id: u64,
    /// The bytes of this end's memory.
    pub(crate) local: Range<usize>,
    /// The first byte of the peer's region; of no meaning for a SEND.
    pub(crate) remote_at: usize,
    /// True for an operation that makes a completion. Any other makes one only if it fails.
    pub(crate) is_signalled: bool,
    /// True if the work request carries the bytes. Never for a READ.
    pub(crate) is_inline: bool,
}

/// Why a queue pair was not made.
#[derive(Debug)]
pub(crate) enum PairFault {
    /// A work request of the device cannot carry so many bytes.
    Inline {
        /// The most bytes that it can carry.
        most: u32,
    },
    /// Another fault.
    Device(io::Error),
}

impl QueuePair {
    /// Makes a queue pair for operations of both ends. Its sends and its receives complete in these two queues. Work requests
    /// can carry exactly as many bytes as `sizes` says, or more.
    ///
    /// # Errors
    ///
    /// The device cannot have queues of these sizes.
    ///
    /// # Panics
    ///
    /// If memory and completion queues belong to different protection domains.
    pub(crate) fn exact(
        queues: [&Arc<CompletionQueue>; 2],
        memory: MemoryRegion,
        config: &QueuePairConfig,
        sizes: QueueSizes,
    ) -> Result<Self, PairFault> {
        let made = create(queues, sizes).map_err(|error| {
            most_inline(queues, sizes, sizes.inline_bytes)
                // As many bytes are not what the device refuses.
                .filter(|most| *most < sizes.inline_bytes)
                .map_or(PairFault::Device(error), |most| PairFault::Inline { most })
        })?;
        Self::assemble(made, queues, memory, config).map_err(PairFault::Device)
    }

    /// Connects to the queue pair of a peer that answers `answered_by_peer` RDMA READs at once.
    ///
    /// # Errors
    ///
    /// The two ends do not match, for instance for want of a route.
    pub(crate) fn connect_to_operate(
        &mut self,
        config: &QueuePairConfig,
        peer: QueuePairAddress,
        answered_by_peer: u8,
    ) -> io::Result<()> {
        let device = self.memory.domain.read_depths()?;
        let reads = ReadDepths {
            begun: device.begun.min(answered_by_peer),
            ..device
        };
        self.connect_for_reads(config, peer, reads)
    }

    /// Returns the most RDMA READs that this end begins and answers at once.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub(crate) fn read_depths(&self) -> io::Result<ReadDepths> {
        self.memory.domain.read_depths()
    }

    /// Returns the address and the key of the memory, for the peer.
    pub(crate) fn remote(&self) -> RemoteRegion {
        self.memory.remote()
    }

    /// Returns the byte of the memory at `at` as it is now. Panics if it is not inside the memory.
    pub(crate) fn poll_byte(&self, at: usize) -> u8 {
        self.memory.poll_byte(at)
    }

    /// Writes one byte of the memory. Panics if it is not inside the memory.
    pub(crate) fn set_byte(&mut self, at: usize, byte: u8) {
        self.memory.set_byte(at, byte);
    }

    /// Posts an operation on this end's memory and `peer`. Its bytes must not change until it is complete, unless the work
    /// request carries them.
    ///
    /// # Errors
    ///
    /// The queue is full, the queue pair is broken, the peer's region is too short, or a work request cannot carry the bytes.
    #[allow(unsafe_code)]
    pub(crate) fn post(
        &mut self,
        operation: &VerbsOperation,
        peer: &RemoteRegion,
    ) -> io::Result<()> {
        let VerbsOperation { kind, local, .. } = operation;
        let mut entry = self.memory.entry(local);
        // SAFETY: integers, pointers and unions of integers, for which zero is a value.
        let mut request: ffi::ibv_send_wr = unsafe { zeroed() };
        request.wr_id = operation.id;
        (request.sg_list, request.num_sge) = (&raw mut entry, 1);
        request.opcode = match kind {
            OperationKind::Write => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            OperationKind::Read => ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
            OperationKind::Send => ffi::ibv_wr_opcode::IBV_WR_SEND,
        };
        if *kind != OperationKind::Send {
            let address = peer.address_of(operation.remote_at, local.len());
            let remote_addr = address.ok_or(io::ErrorKind::InvalidInput)?;
            let rkey = peer.key;
            request.wr.rdma = ffi::rdma_t { remote_addr, rkey };
        }
        if operation.is_signalled {
            request.send_flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if operation.is_inline {
            if *kind == OperationKind::Read || local.len() > self.inline_bytes {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            request.send_flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists. The request and its list are read during the call only; the memory that they name
        // belongs to this value, and outlives the queue pair. What a READ writes there is never behind a reference. The peer's
        // memory is protected by its own device, which compares the key.
        check(unsafe { ffi::ibv_post_send(self.pair, &raw mut request, &raw mut bad) })
    }
}

/// Returns the most bytes that a work request can carry, up to `limit`; none if the queues cannot be made without any either.
/// Makes queue pairs to find it out, and destroys them.
pub(crate) fn most_inline(
    queues: [&Arc<CompletionQueue>; 2],
    sizes: QueueSizes,
    limit: u32,
) -> Option<u32> {
    if can_create(queues, sizes.with_inline(limit)) {
        return Some(limit);
    }
    if !can_create(queues, sizes.with_inline(0)) {
        return None;
    }
    let (mut fits, mut too_many) = (0, limit);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if can_create(queues, sizes.with_inline(middle)) {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    Some(fits)
}

/// Makes a queue pair of these sizes, and destroys it.
#[allow(unsafe_code)]
fn can_create(queues: [&Arc<CompletionQueue>; 2], sizes: QueueSizes) -> bool {
    create(queues, sizes).is_ok_and(|(pair, _)| {
        // SAFETY: it was just made, and nothing else has it.
        unsafe { ffi::ibv_destroy_qp(pair) };
        true
    })
}
