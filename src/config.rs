//! What a stream is asked to be: sizes, time limits, transport and direction.

use std::{thread, time::Duration};

use tokio::runtime::Handle;

/// Largest payload of one chunk that either end accepts, in bytes.
///
/// 64 MiB: far above any size that gains speed (the curve is flat from 4 MiB on), and small
/// enough that a length field damaged on the way cannot ask for gigabytes.
pub const MAX_CHUNK_BYTES: usize = 64 << 20;

/// Smallest payload of one chunk, in bytes: one page, below which headers and wake-ups dominate.
pub const MIN_CHUNK_BYTES: usize = 4 << 10;

/// Fewest slots a pool can have: one being filled while the other is on its way.
pub const MIN_DEPTH: usize = 2;

/// Most slots a pool can have. A control message that returns all of them at once still fits
/// into one Noise message (65,519 bytes at 5 bytes a slot).
pub const MAX_DEPTH: usize = 4096;

/// How a stream is set up. Both ends bring one; the handshake takes the smaller of the two
/// chunk sizes, and each receiver decides the depth of its own pool.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamConfig {
    /// Payload of one chunk, in bytes: [`MIN_CHUNK_BYTES`] to [`MAX_CHUNK_BYTES`].
    pub chunk_bytes: usize,
    /// Slots in each pool: [`MIN_DEPTH`] to [`MAX_DEPTH`]. A one-way stream has one pool per
    /// end, a two-way stream two.
    pub depth: usize,
    /// How long the peer may be silent before it counts as dead. Keepalives are sent four
    /// times as often, so a paused reader is never taken for a dead one.
    pub timeout: Duration,
    /// How long [`connect`](crate::connect) goes on trying to reach the acceptor.
    /// The handshake that follows has its own limit, [`handshake_timeout`](Self::handshake_timeout).
    pub connect_timeout: Duration,
    /// How long a handshake may take before the peer loses its connection.
    pub handshake_timeout: Duration,
    /// Which transports may be used.
    pub transport: TransportPolicy,
    /// What applies to RDMA only, its chunk size and depth among it.
    pub rdma: RdmaConfig,
    /// Which ways bytes will travel.
    pub direction: Direction,
    /// Where the stream's control task runs: credits, keepalives, FIN and ABORT.
    ///
    /// `None` is the current runtime, where a credit finds its sender without another thread.
    pub control_runtime: Option<Handle>,
    /// What keeps the connection warm while the control task's runtime is blocked.
    ///
    /// `None` is right for every program that never blocks it. A program that does (ours read and write files
    /// on the stream's own runtime, which costs one thread hop per chunk less) gives another
    /// runtime, so that a disk that stalls for a minute does not look like a death to the peer.
    pub keepalive_runtime: Option<Handle>,
    /// Ways to break the protocol on purpose, so that the tests are seen able to fail.
    #[cfg(feature = "fault-injection")]
    pub faults: crate::Faults,
}

impl Default for StreamConfig {
    /// 512 KiB × 16 = 8 MiB per receive pool, the only large one over TCP.
    ///
    /// A chunk that stays in the processor's cache between the read, the digest and the send is
    /// what makes them cheap: 512 KiB fits the L2 of a server of the last ten years. Half of that
    /// costs a tenth more (two system calls, a wake-up and a header for half the bytes), twice as
    /// much already falls out of the cache. Measured by `scripts/bench`.
    fn default() -> Self {
        Self {
            chunk_bytes: 512 << 10,
            depth: 16,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(10),
            transport: TransportPolicy::Auto,
            rdma: RdmaConfig::default(),
            direction: Direction::Both,
            control_runtime: None,
            keepalive_runtime: None,
            #[cfg(feature = "fault-injection")]
            faults: crate::Faults::default(),
        }
    }
}

/// How a stream is set up where RDMA carries it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Payload of one chunk, in bytes, each a registered buffer.
    pub chunk_bytes: usize,
    /// Chunks in each pool. Both shrink where the memlock limit wants it.
    pub depth: usize,
    /// Only this device, by its name under `/sys/class/infiniband`.
    pub device: Option<String>,
    /// Only this port of each device, from 1.
    pub port: Option<u8>,
    /// Only this row of each port's GID table.
    pub gid_index: Option<u8>,
    /// Traffic class of each packet (on RoCE v2 the DSCP and ECN bits of the IP header).
    pub traffic_class: u8,
    /// Service level, 0 to 15 (on RoCE the VLAN priority).
    pub service_level: u8,
    /// Row of the port's partition key table.
    pub pkey_index: u16,
    /// After how many completed operations an end replaces its link, unnoticed by the users: each
    /// leaves 64 to 128 bytes of kernel memory behind, which only a new link gives back.
    pub renew_after: u64,
}

impl Default for RdmaConfig {
    /// 2 MiB × 4 = 8 MiB; a two-way stream has two pools of 3, which with headers, rings and small
    /// receives stay below the 16 MiB that a stream's end pins at most.
    ///
    /// Over RDMA operations and wake-ups cost more than bytes: so large chunks, and still enough of
    /// them that one is filled, one is on its way and one is being read. Not more: what is written,
    /// copied by the device or its driver, verified and read has to come out of the processor's
    /// caches, and deeper pools of the same chunks were seen to be slower.
    ///
    /// On a machine of one processor 3 MiB × 2: nothing there is done while something else is, and the fewest
    /// switches and the least cache were seen to be the fastest, by a tenth.
    fn default() -> Self {
        let is_alone = thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let (chunk_bytes, depth) = if is_alone { LONE_POOL } else { POOL };
        Self {
            chunk_bytes,
            depth,
            device: None,
            port: None,
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            renew_after: RENEW_AFTER,
        }
    }
}

/// Chunk size and depth on a machine that does things at once.
pub(crate) const POOL: (usize, usize) = (2 << 20, 4);

/// Chunk size and depth on a machine of one processor.
pub(crate) const LONE_POOL: (usize, usize) = (3 << 20, 2);

/// A quarter of a million operations: at most 32 MiB of kernel memory for each end, and half a
/// tebibyte of chunks of the default size between two renewals of some milliseconds.
const RENEW_AFTER: u64 = 1 << 18;

/// Which transports a stream may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportPolicy {
    /// RDMA where both ends have it and a message has crossed it, otherwise TCP.
    #[default]
    Auto,
    /// RDMA or an error.
    Rdma,
    /// TCP, whatever the hardware.
    Tcp,
}

/// Which ways bytes travel, seen from the end that holds the value. The two ends of a one-way
/// stream must ask for opposite directions; an end that asks for `Both` takes what the other has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Both ways.
    #[default]
    Both,
    /// This end only sends: it has no receive pool, and reading is an immediate end of file.
    Send,
    /// This end only receives: it has no send pool, and writing is an error.
    Receive,
}

impl Direction {
    /// Whether this end sends.
    #[must_use]
    pub fn sends(self) -> bool {
        self != Self::Receive
    }

    /// Whether this end receives.
    #[must_use]
    pub fn receives(self) -> bool {
        self != Self::Send
    }
}
