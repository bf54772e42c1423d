//! A queue pair with its memory.

use std::{fmt, io, mem::zeroed, ops::Range, ptr, sync::Arc};

use rdma_sys as ffi;
use serde::{Deserialize, Serialize};

use super::{
    check,
    completions::{CompletionQueue, QueueRoom},
    create::{create, reserve},
    memory::MemoryRegion,
    sizes::{QueueSizes, ReadDepths},
};
use crate::transport::rdma::{
    link::{ACK_TIMEOUT, RETRIES, RNR_RETRIES},
    ports::gid::Gid,
    verbs::queue_pair_config::QueuePairConfig,
};

/// How long a sender waits before it tries again, when a receiver has posted no receive: the shortest time, 0.01 ms.
const RNR_TIMER: u8 = 1;

/// The hops that a packet may take.
const HOP_LIMIT: u8 = 64;

/// The bits of a packet sequence number.
const PSN_MASK: u32 = 0xff_ffff;

/// The address of a queue pair, for the peer to connect to: its number, and the addresses of its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairAddress {
    number: u32,
    lid: u16,
    gid: [u8; 16],
}

impl fmt::Display for QueuePairAddress {
    /// `number 17 at 10.1.0.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "number {} at {}", self.number, Gid(self.gid))
    }
}

/// A reliable connection (RC), and the memory that its work requests use.
///
/// The queue pair owns its memory, so that the memory outlives every work request. Dropping the queue pair ends the connection
/// without a word to the peer: both ends first agree that they are done.
pub struct QueuePair {
    pub(super) pair: *mut ffi::ibv_qp,
    /// The number of bytes that a send can carry in its work request.
    pub(super) inline_bytes: usize,
    /// The READs of the connection, or none before it. Providers do not refuse what is posted too early, and a READ on a
    /// connection without READs never completes on soft-RoCE.
    pub(super) connection: Option<ReadDepths>,
    /// The fields below are dropped after `Drop` has destroyed the queue pair, so the device does not use them any more.
    pub(super) memory: MemoryRegion,
    /// Where sends complete.
    completions: Arc<CompletionQueue>,
    /// The room for completions of sends and of receives, which keeps their queues.
    _rooms: [QueueRoom; 2],
}

// SAFETY: the API of verbs promises that every thread may use its objects.
#[allow(unsafe_code)]
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair whose sends and receives use `memory` and complete in `completions`. If the device cannot carry as
    /// many bytes inline, it carries fewer: see [`inline_bytes`](Self::inline_bytes). Receives can be posted at once.
    ///
    /// # Errors
    ///
    /// The completion queue has no room for as many work requests, or the device does not allow queues of these sizes.
    ///
    /// # Panics
    ///
    /// If memory and completion queue belong to different protection domains.
    pub fn new(
        completions: &Arc<CompletionQueue>,
        memory: MemoryRegion,
        config: &QueuePairConfig,
        sizes: QueueSizes,
    ) -> io::Result<Self> {
        let queues = [completions, completions];
        let rooms = reserve(queues, &memory, sizes)?;
        let made = create(queues, sizes);
        let made = made.or_else(|_| create(queues, sizes.with_inline(sizes.inline_bytes / 4)));
        let made = made.or_else(|_| create(queues, sizes.with_inline(0)))?;
        Self::assemble(made, completions, rooms, memory, config)
    }

    /// Takes over what [`create`] has made for the completion queues in which [`reserve`] has reserved these rooms.
    pub(super) fn assemble(
        (pair, inline_bytes): (*mut ffi::ibv_qp, usize),
        completions: &Arc<CompletionQueue>,
        rooms: [QueueRoom; 2],
        memory: MemoryRegion,
        config: &QueuePairConfig,
    ) -> io::Result<Self> {
        let mut queue_pair = Self {
            pair,
            inline_bytes,
            connection: None,
            memory,
            completions: Arc::clone(completions),
            _rooms: rooms,
        };
        queue_pair.initialise(config)?;
        Ok(queue_pair)
    }

    /// Returns the address of this queue pair, for the peer.
    ///
    /// # Errors
    ///
    /// Those of the device: there is no such port or GID.
    #[allow(unsafe_code)]
    pub fn address(&self, config: &QueuePairConfig) -> io::Result<QueuePairAddress> {
        Ok(QueuePairAddress {
            // SAFETY: the queue pair exists.
            number: unsafe { (*self.pair).qp_num },
            lid: self.memory.domain.lid(config.port)?,
            gid: self.memory.domain.gid(config.port, config.gid_index)?,
        })
    }

    /// Returns the number of bytes that a SEND or WRITE can carry in its work request: as many as were asked for, or more, or
    /// fewer if [`new`](Self::new) has made the queue pair.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Copies the bytes of the memory from `at` on into `copy`.
    ///
    /// # Panics
    ///
    /// If they are not inside the memory.
    pub fn read(&self, at: usize, copy: &mut [u8]) {
        self.memory.read(at, copy);
    }

    /// Copies `bytes` into the memory, from `at` on.
    ///
    /// # Panics
    ///
    /// If there is no room for them.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }

    /// Returns the completion queue of the sends.
    #[must_use]
    pub fn completions(&self) -> &Arc<CompletionQueue> {
        &self.completions
    }

    /// Receives can be posted after this.
    fn initialise(&mut self, config: &QueuePairConfig) -> io::Result<()> {
        use ffi::ibv_qp_attr_mask as Mask;
        let mut attributes = attributes(ffi::ibv_qp_state::IBV_QPS_INIT);
        attributes.pkey_index = config.pkey_index;
        attributes.port_num = config.port;
        attributes.qp_access_flags = self.memory.remote_access();
        let mask = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    /// Connects to the peer's queue pair, for SENDs and WRITEs: [`post`](Self::post) refuses READs, and this end answers none.
    /// Packets that arrive earlier are dropped; the peer's device sends them again.
    ///
    /// # Errors
    ///
    /// The two ends do not match, for instance because there is no route.
    pub fn connect(&mut self, config: &QueuePairConfig, peer: QueuePairAddress) -> io::Result<()> {
        self.connect_with_depths(config, peer, ReadDepths::default())
    }

    /// Connects to the peer's queue pair, for as many RDMA READs at once. Packets that arrive earlier are dropped; the peer's
    /// device sends them again.
    ///
    /// # Errors
    ///
    /// The two ends do not match, for instance because there is no route.
    pub(super) fn connect_with_depths(
        &mut self,
        config: &QueuePairConfig,
        peer: QueuePairAddress,
        read_depths: ReadDepths,
    ) -> io::Result<()> {
        use ffi::ibv_qp_attr_mask as Mask;
        let mut ready = attributes(ffi::ibv_qp_state::IBV_QPS_RTR);
        ready.path_mtu = mtu(config.mtu);
        ready.dest_qp_num = peer.number;
        ready.rq_psn = config.receive_psn & PSN_MASK;
        ready.min_rnr_timer = RNR_TIMER;
        ready.max_dest_rd_atomic = read_depths.answered;
        let route = &mut ready.ah_attr;
        (route.is_global, route.port_num) = (1, config.port);
        (route.dlid, route.sl) = (peer.lid, config.service_level);
        route.grh.dgid.raw = peer.gid;
        route.grh.sgid_index = u8::try_from(config.gid_index).map_err(io::Error::other)?;
        (route.grh.hop_limit, route.grh.traffic_class) = (HOP_LIMIT, config.traffic_class);
        let mask = Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut ready, mask)?;
        let mut sends = attributes(ffi::ibv_qp_state::IBV_QPS_RTS);
        sends.sq_psn = config.send_psn & PSN_MASK;
        (sends.timeout, sends.retry_cnt) = (ACK_TIMEOUT, RETRIES);
        sends.rnr_retry = RNR_RETRIES;
        sends.max_rd_atomic = read_depths.begun;
        let mask = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut sends, mask)?;
        self.connection = Some(read_depths);
        Ok(())
    }

    #[allow(unsafe_code)]
    fn modify(
        &mut self,
        attributes: &mut ffi::ibv_qp_attr,
        mask: ffi::ibv_qp_attr_mask,
    ) -> io::Result<()> {
        let mask = mask | ffi::ibv_qp_attr_mask::IBV_QP_STATE;
        let mask = i32::try_from(mask.0).map_err(io::Error::other)?;
        // SAFETY: the queue pair exists, and `attributes` is initialised.
        check(unsafe { ffi::ibv_modify_qp(self.pair, attributes, mask) })
    }

    /// Posts a receive into `range` of the memory. Its completion has the number `id`. SENDs of the peer use up receives in the
    /// order in which they were posted; a SEND that is longer than its receive breaks both ends.
    ///
    /// # Errors
    ///
    /// The queue is full, the queue pair is broken, or the range has 2 GiB or more.
    ///
    /// # Panics
    ///
    /// If the range is not inside the memory.
    #[allow(unsafe_code)]
    pub fn post_receive(&mut self, id: u64, range: &Range<usize>) -> io::Result<()> {
        let mut entry = self.memory.entry(range)?;
        let mut request = ffi::ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut entry,
            num_sge: entries(range),
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists. The request and its list are read during the call only; the memory that they name
        // belongs to this value, and outlives the queue pair.
        check(unsafe { ffi::ibv_post_recv(self.pair, &raw mut request, &raw mut bad) })
    }

    /// Posts a send of `range` of the memory, which must not change until the peer has received it, unless it is so short that
    /// the request carries the bytes. A send that is `signalled` makes a completion with the number `id`; any other only if
    /// it fails.
    ///
    /// # Errors
    ///
    /// The queue is full, or the queue pair is broken.
    #[allow(unsafe_code)]
    pub(crate) fn post_send(
        &mut self,
        id: u64,
        range: &Range<usize>,
        signalled: bool,
    ) -> io::Result<()> {
        let mut entry = self.memory.entry(range)?;
        // SAFETY: integers, pointers and unions of integers, for which zero is a value.
        let mut request: ffi::ibv_send_wr = unsafe { zeroed() };
        request.wr_id = id;
        (request.sg_list, request.num_sge) = (&raw mut entry, entries(range));
        request.opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
        if signalled {
            request.send_flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if range.len() <= self.inline_bytes {
            request.send_flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists. The request and its list are read during the call only; the memory that they name
        // belongs to this value, and outlives the queue pair.
        check(unsafe { ffi::ibv_post_send(self.pair, &raw mut request, &raw mut bad) })
    }

    /// Breaks the queue pair, for tests: all its work requests fail, those that are posted and those that will be.
    pub(crate) fn fail(&mut self) -> io::Result<()> {
        let mut failed = attributes(ffi::ibv_qp_state::IBV_QPS_ERR);
        self.modify(&mut failed, ffi::ibv_qp_attr_mask(0))
    }
}

impl Drop for QueuePair {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: nothing else uses the queue pair. After this the device uses neither the memory nor the completion queue,
        // which are dropped next.
        unsafe { ffi::ibv_destroy_qp(self.pair) };
    }
}

/// Returns the number of entries in the scatter/gather list of a work request: some devices take an entry without bytes as one
/// of 2^31 bytes.
pub(super) fn entries(range: &Range<usize>) -> i32 {
    i32::from(!range.is_empty())
}

#[allow(unsafe_code)]
fn attributes(state: ffi::ibv_qp_state::Type) -> ffi::ibv_qp_attr {
    // SAFETY: integers and a union of bytes, for which zero is a value.
    let mut attributes: ffi::ibv_qp_attr = unsafe { zeroed() };
    attributes.qp_state = state;
    attributes
}

fn mtu(bytes: u32) -> ffi::ibv_mtu::Type {
    match bytes {
        4096.. => ffi::ibv_mtu::IBV_MTU_4096,
        2048.. => ffi::ibv_mtu::IBV_MTU_2048,
        1024.. => ffi::ibv_mtu::IBV_MTU_1024,
        512.. => ffi::ibv_mtu::IBV_MTU_512,
        _ => ffi::ibv_mtu::IBV_MTU_256,
    }
}
