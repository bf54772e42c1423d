//! A queue pair with its memory: its parameters, what a device is asked for, and how much may be under way at once.

use std::{fmt, io, mem::zeroed, ops::Range, ptr, sync::Arc};

use rdma_sys as ffi;
use serde::{Deserialize, Serialize};

use super::{
    check,
    device::{CompletionQueue, QueueRoom},
    memory::MemoryRegion,
    not_null,
};
use crate::{
    config::RdmaConfig,
    transport::rdma::{
        link::{ACK_TIMEOUT, RETRIES, RNR_RETRIES},
        ports::{device::inventory, network::Gid, offer::DeviceChoice},
    },
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
/// The queue pair owns its memory, so that the memory outlives every work request. Dropping the queue pair ends the
/// connection without a word to the peer: both ends first agree that they are done.
pub struct QueuePair {
    pub(super) pair: *mut ffi::ibv_qp,
    /// The number of bytes that a send can carry in its work request.
    pub(super) inline_bytes: usize,
    /// The READs of the connection, or none before it. Providers do not refuse what is posted too early, and a READ on
    /// a connection without READs never completes on soft-RoCE.
    pub(super) connection: Option<ReadDepths>,
    /// The fields below are dropped after `Drop` has destroyed the queue pair, so the device does not use them any
    /// more.
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
    /// Makes a queue pair whose sends and receives use `memory` and complete in `completions`. If the device cannot
    /// carry as many bytes inline, it carries fewer: see [`inline_bytes`](Self::inline_bytes). Receives can be posted
    /// at once.
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

    /// Returns the number of bytes that a SEND or WRITE can carry in its work request: as many as were asked for, or
    /// more, or fewer if [`new`](Self::new) has made the queue pair.
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

    /// Connects to the peer's queue pair, for SENDs and WRITEs: [`post`](Self::post) refuses READs, and this end
    /// answers none. Packets that arrive earlier are dropped; the peer's device sends them again.
    ///
    /// # Errors
    ///
    /// The two ends do not match, for instance because there is no route.
    pub fn connect(&mut self, config: &QueuePairConfig, peer: QueuePairAddress) -> io::Result<()> {
        self.connect_with_depths(config, peer, ReadDepths::default())
    }

    /// Connects to the peer's queue pair, for as many RDMA READs at once. Packets that arrive earlier are dropped; the
    /// peer's device sends them again.
    /// Fails if the two ends do not match, for instance because there is no route.
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

    /// Posts a receive into `range` of the memory. Its completion has the number `id`. SENDs of the peer use up
    /// receives in the order in which they were posted; a SEND that is longer than its receive breaks both ends.
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
        // SAFETY: the queue pair exists. The request and its list are read during the call only; the memory that they
        // name belongs to this value, and outlives the queue pair.
        check(unsafe { ffi::ibv_post_recv(self.pair, &raw mut request, &raw mut bad) })
    }

    /// Posts a send of `range` of the memory, which must not change until the peer has received it, unless it is so
    /// short that the request carries the bytes. A send that is `signalled` makes a completion with the number `id`;
    /// any other only if it fails.
    /// Fails if the queue is full, or the queue pair is broken.
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
        // SAFETY: the queue pair exists. The request and its list are read during the call only; the memory that they
        // name belongs to this value, and outlives the queue pair.
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
        // SAFETY: nothing else uses the queue pair. After this the device uses neither the memory nor the completion
        // queue, which are dropped next.
        unsafe { ffi::ibv_destroy_qp(self.pair) };
    }
}

/// Returns the number of entries in the scatter/gather list of a work request: some devices take an entry without bytes
/// as one of 2^31 bytes.
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

/// The most bytes inline that a device is asked for. None carries as many, and providers compute with larger numbers
/// carelessly.
const MOST_INLINE: u32 = 1 << 16;

/// Reserves room for the completions of sends and receives in these queues, for a queue pair with this memory.
/// Fails if a queue has no room for them.
/// Panics if memory and completion queues belong to different protection domains.
pub(super) fn reserve(
    [sends, receives]: [&Arc<CompletionQueue>; 2],
    memory: &MemoryRegion,
    sizes: QueueSizes,
) -> io::Result<[QueueRoom; 2]> {
    assert!(
        Arc::ptr_eq(&memory.domain, &sends.domain),
        "two protection domains"
    );
    assert_one_domain([sends, receives]);
    Ok([
        QueueRoom::reserve(sends, sizes.sends)?,
        QueueRoom::reserve(receives, sizes.receives)?,
    ])
}

/// A device must never see completion queues of two devices together.
fn assert_one_domain([sends, receives]: [&Arc<CompletionQueue>; 2]) {
    assert!(
        Arc::ptr_eq(&sends.domain, &receives.domain),
        "two protection domains"
    );
}

/// Makes a queue pair whose sends and receives complete in these two queues. Returns it and the number of bytes that a
/// send can carry inline.
#[allow(unsafe_code)]
pub(super) fn create(
    [sends, receives]: [&Arc<CompletionQueue>; 2],
    sizes: QueueSizes,
) -> io::Result<(*mut ffi::ibv_qp, usize)> {
    assert_one_domain([sends, receives]);
    if sizes.inline_bytes > MOST_INLINE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut wanted: ffi::ibv_qp_init_attr = unsafe { zeroed() };
    (wanted.send_cq, wanted.recv_cq) = (sends.queue, receives.queue);
    wanted.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
    wanted.cap.max_send_wr = sizes.sends;
    wanted.cap.max_recv_wr = sizes.receives;
    (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (1, 1);
    wanted.cap.max_inline_data = sizes.inline_bytes;
    // SAFETY: domain and completion queues exist as long as the queue pair, whose owner owns the completion queues.
    let pair = unsafe { ffi::ibv_create_qp(sends.domain.domain, &raw mut wanted) };
    Ok((not_null(pair)?, wanted.cap.max_inline_data as usize))
}

/// The sizes of the queues.
#[derive(Debug, Clone, Copy)]
pub struct QueueSizes {
    /// The most SENDs, WRITEs and READs that are posted at once.
    pub sends: u32,
    /// The most receives that are posted at once.
    pub receives: u32,
    /// The number of bytes that a SEND or WRITE can carry in its work request. Devices carry some 200 to 1,000.
    pub inline_bytes: u32,
}

impl QueueSizes {
    pub(super) fn with_inline(self, inline_bytes: u32) -> Self {
        Self {
            inline_bytes,
            ..self
        }
    }
}

/// The most RDMA READs of a queue pair that are under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadDepths {
    /// Those that this end begins.
    pub begun: u8,
    /// Those of the peer that this end answers.
    pub answered: u8,
}

/// The port and the parameters of a queue pair. Both ends agree on the MTU and on the packet sequence numbers before
/// they connect.
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
    /// Chooses the port that a stream would offer first: of the usable ports, the fastest hardware, with the best
    /// address of its GID table. `device`, `port`, `gid_index` and `pkey_index` of `config` restrict the choice, and
    /// `traffic_class` and `service_level` mark the packets. The largest MTU of the port and a random packet sequence
    /// number are set.
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
