//! Operations with all their settings: WRITE, READ and SEND, signalled or not, inline or not.

use std::{io, mem::zeroed, ops::Range, ptr, sync::Arc};

use rdma_sys as ffi;

use super::queue_pair::QueuePairConfig;
use super::{
    check,
    device::CompletionQueue,
    memory::{MemoryRegion, RemoteRegion},
    queue_pair::{QueuePair, QueuePairAddress, QueueSizes, ReadDepths, create, entries, reserve},
};

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// Writes the bytes into the peer's region.
    Write,
    /// Reads the bytes from the peer's region.
    Read,
    /// Sends the bytes into the receive that the peer has posted.
    Send,
}

/// An operation to post: a work request of a queue of sends.
#[derive(Debug, Clone)]
pub struct VerbsOperation {
    /// What the operation does.
    pub kind: OperationKind,
    /// The number that the completion has.
    pub id: u64,
    /// The bytes of this end's memory.
    pub local: Range<usize>,
    /// The first byte, counted from the start of the peer's region; of no meaning for a SEND.
    pub remote_at: usize,
    /// True for an operation that makes a completion. Any other makes one only if it fails.
    pub is_signalled: bool,
    /// True if the work request carries the bytes. Never for a READ.
    pub is_inline: bool,
}

/// The reason why a queue pair was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairFault {
    /// A work request of the device cannot carry so many bytes.
    #[error("a work request carries at most {most} bytes inline")]
    Inline {
        /// The most bytes that it can carry.
        most: u32,
    },
    /// A completion queue has no room for as many work requests, or the device does not allow queues of these sizes.
    #[error(transparent)]
    Device(io::Error),
}

impl VerbsOperation {
    /// Returns a signalled SEND of `local`, whose bytes are read from memory. `VerbsOperation { is_inline: true, ..send
    /// }` changes a setting.
    #[must_use]
    pub fn send(id: u64, local: Range<usize>) -> Self {
        Self {
            kind: OperationKind::Send,
            id,
            local,
            remote_at: 0,
            is_signalled: true,
            is_inline: false,
        }
    }

    /// Returns a signalled WRITE of `local` to the bytes of the peer's region from `remote_at` on.
    #[must_use]
    pub fn write(id: u64, local: Range<usize>, remote_at: usize) -> Self {
        Self {
            kind: OperationKind::Write,
            remote_at,
            ..Self::send(id, local)
        }
    }

    /// Returns a signalled READ of the bytes of the peer's region from `remote_at` on, into `local`.
    #[must_use]
    pub fn read(id: u64, local: Range<usize>, remote_at: usize) -> Self {
        Self {
            kind: OperationKind::Read,
            remote_at,
            ..Self::send(id, local)
        }
    }
}

impl QueuePair {
    /// Makes a queue pair whose sends complete in the first queue and whose receives complete in the second, which may
    /// be the same. Work requests can carry as many bytes as `sizes` says, or more. Receives can be posted at once.
    ///
    /// # Errors
    ///
    /// [`PairFault`] says whether the device could not carry as many bytes inline.
    ///
    /// # Panics
    ///
    /// If memory and completion queues belong to different protection domains.
    pub fn exact(
        queues: [&Arc<CompletionQueue>; 2],
        memory: MemoryRegion,
        config: &QueuePairConfig,
        sizes: QueueSizes,
    ) -> Result<Self, PairFault> {
        let rooms = reserve(queues, &memory, sizes).map_err(PairFault::Device)?;
        let made = create(queues, sizes).map_err(|error| {
            most_inline(queues, sizes, sizes.inline_bytes)
                // As many bytes are not what the device refuses.
                .filter(|most| *most < sizes.inline_bytes)
                .map_or(PairFault::Device(error), |most| PairFault::Inline { most })
        })?;
        Self::assemble(made, queues[0], rooms, memory, config).map_err(PairFault::Device)
    }

    /// Connects to the queue pair of a peer that answers `answered_by_peer` READs at once (see
    /// [`read_depths`](Self::read_depths)), for SENDs, WRITEs and READs. Packets that arrive earlier are dropped; the peer's
    /// device sends them again.
    ///
    /// # Errors
    ///
    /// The two ends do not match, for instance because there is no route.
    pub fn connect_for_reads(
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
        self.connect_with_depths(config, peer, reads)
    }

    /// Returns the most READs that this end begins and answers at once.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn read_depths(&self) -> io::Result<ReadDepths> {
        self.memory.domain.read_depths()
    }

    /// Returns the address and the key of the memory, for the peer. The peer can use it if the memory was registered
    /// with
    /// [`MemoryRegion::register_shared`].
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.memory.remote()
    }

    /// Returns the byte of the memory at `at` as it is now: a peer may write it at any time. WRITEs that the peer
    /// posted before the WRITE of this byte are read correctly afterwards.
    ///
    /// # Panics
    ///
    /// If the byte is not inside the memory.
    #[must_use]
    pub fn poll_byte(&self, at: usize) -> u8 {
        self.memory.poll_byte(at)
    }

    /// Writes one byte of the memory, before any work request that is posted later.
    ///
    /// # Panics
    ///
    /// If the byte is not inside the memory.
    pub fn set_byte(&mut self, at: usize, byte: u8) {
        self.memory.set_byte(at, byte);
    }

    /// Posts an operation on this end's memory and `peer`, which a SEND does not need. The bytes must not change until
    /// the operation is complete, unless the work request carries them: the peer would get some old and some new bytes.
    ///
    /// An operation that makes no completion keeps its place in the queue until a later one is complete, so a queue of
    /// sends without any signalled operation fills up forever.
    ///
    /// # Errors
    ///
    /// - [`io::ErrorKind::OutOfMemory`]: the queue is full.
    /// - [`io::ErrorKind::NotConnected`]: the queue pair is not connected yet.
    /// - [`io::ErrorKind::InvalidInput`]: the range has 2 GiB or more, a WRITE or READ has no region or one that is too
    ///   short, or a work request cannot carry the bytes.
    /// - [`io::ErrorKind::Unsupported`]: a READ on a connection that was not made for READs.
    /// - Other errors of the device: the queue pair is broken.
    ///
    /// # Panics
    ///
    /// If the range of this end is not inside the memory.
    #[allow(unsafe_code)]
    pub fn post(
        &mut self,
        operation: &VerbsOperation,
        peer: Option<&RemoteRegion>,
    ) -> io::Result<()> {
        let VerbsOperation { kind, local, .. } = operation;
        let connection = self.connection.ok_or(io::ErrorKind::NotConnected)?;
        if *kind == OperationKind::Read && connection.begun == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut entry = self.memory.entry(local)?;
        // SAFETY: integers, pointers and unions of integers, for which zero is a value.
        let mut request: ffi::ibv_send_wr = unsafe { zeroed() };
        request.wr_id = operation.id;
        (request.sg_list, request.num_sge) = (&raw mut entry, entries(local));
        request.opcode = match kind {
            OperationKind::Write => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            OperationKind::Read => ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
            OperationKind::Send => ffi::ibv_wr_opcode::IBV_WR_SEND,
        };
        if *kind != OperationKind::Send {
            let peer = peer.ok_or(io::ErrorKind::InvalidInput)?;
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
        // SAFETY: the queue pair exists. The request and its list are read during the call only; the memory that they
        // name belongs to this value, and outlives the queue pair. What a READ writes there is never behind a
        // reference. The peer's memory is protected by its own device, which compares the key.
        check(unsafe { ffi::ibv_post_send(self.pair, &raw mut request, &raw mut bad) })
    }
}

/// Returns the most bytes that a work request can carry, up to `limit`; none if the queues cannot be made without any
/// either. Makes queue pairs to find it out, and destroys them.
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
