//! The settings of a stream: sizes, time limits, transport, encryption and direction.

use std::{fmt, thread, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

/// The largest payload of one chunk that either end accepts, in bytes.
///
/// 64 MiB is far above any size that gains speed (the curve is flat from 4 MiB on), and small enough that a damaged
/// length field cannot request gigabytes.
pub const MAX_CHUNK_BYTES: usize = 64 << 20;

/// The smallest payload of one chunk, in bytes: one page. Below it, headers and wake-ups cost more than the data.
pub const MIN_CHUNK_BYTES: usize = 4 << 10;

/// The smallest number of slots of a pool: one slot is filled while the other is sent.
pub const MIN_DEPTH: usize = 2;

/// The largest number of slots of a pool. A control message that returns all of them at once still fits
/// into one Noise message (65,519 bytes at 5 bytes a slot).
pub const MAX_DEPTH: usize = 4096;

/// The longest time limit that has an effect, 30 years: a longer one cannot be added to the current time on every
/// system.
pub(crate) const LONGEST_LIMIT: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The settings of one end of a stream. The handshake takes the smaller of both ends' chunk sizes, and each receiver
/// decides the depth of its own pool.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamConfig {
    /// The payload of one chunk, in bytes: [`MIN_CHUNK_BYTES`] to [`MAX_CHUNK_BYTES`].
    pub chunk_bytes: usize,
    /// The number of slots of each pool: [`MIN_DEPTH`] to [`MAX_DEPTH`]. A one-way stream has one pool per
    /// end, a two-way stream two.
    pub depth: usize,
    /// The silence after which the peer is treated as dead. Keepalives are sent four times as often, so a reader that
    /// pauses is not treated as dead. If the peer is alive, and the data connection delivers nothing of what the peer
    /// has sent, the stream fails too, within 1.25 times this and two seconds. `Duration::MAX` means 30 years, as does
    /// every longer time.
    pub timeout: Duration,
    /// The time limit of [`connect`](crate::connect()), from its first attempt to the end of the handshake.
    pub connect_timeout: Duration,
    /// The time for which [`connect`](crate::connect()) repeats failed attempts, within `connect_timeout`. Zero means
    /// one attempt.
    pub retry_for: Duration,
    /// The time after which a connection is closed if its handshake has not completed. An acceptor gives this time to
    /// the proof of the key, then to the wait for one of the streams that may be negotiated at once, then to the
    /// negotiation.
    pub handshake_timeout: Duration,
    /// The transports that may be used.
    pub transport: TransportPolicy,
    /// Whether the data is encrypted.
    pub encryption: Encryption,
    /// The settings for RDMA, with its chunk size and depth.
    pub rdma: RdmaConfig,
    /// Copies each chunk that arrives over RDMA to memory that the peer cannot write, before it is verified and read.
    /// The default is `false`, for peers that are trusted.
    ///
    /// A peer that has the key and breaks the protocol can change the bytes of a chunk while this end reads it, also
    /// after they were verified: see [`ReadHalf::read_chunk`](crate::ReadHalf::read_chunk). With the copy, the bytes
    /// that are read are always those that were verified. The copies take as much memory as the receive pool, which is
    /// not pinned, and the time to copy every byte once. Over TCP the peer cannot write the memory of this end, and the
    /// setting has no effect.
    pub copy_received: bool,
    /// The direction in which bytes travel.
    pub direction: Direction,
    /// The number of rails of a stream.
    pub rails: Rails,
    /// What happens when a stream is dropped before its [`shutdown`](tokio::io::AsyncWriteExt::shutdown) has completed.
    pub on_drop: OnDrop,
    /// The runtime of the stream's control task: credits, keepalives, FIN and ABORT.
    ///
    /// `None` is the current runtime, where a credit reaches the sender without a change of threads.
    pub control_runtime: Option<Handle>,
    /// The runtime that sends keepalives while the control task's runtime is blocked.
    ///
    /// `None` is right for a program that never blocks the control runtime. A program that blocks it gives another
    /// runtime here. Otherwise a disk that stalls for a minute stops the keepalives, and the peer treats this end as
    /// dead. (The programs of this crate read and write files on the stream's own runtime, which saves one thread hop
    /// per chunk.)
    pub keepalive_runtime: Option<Handle>,
    /// The rules of the protocol that this end breaks, for tests.
    #[cfg(feature = "fault-injection")]
    pub faults: crate::Faults,
}

impl Default for StreamConfig {
    /// Returns the default settings: over TCP 512 KiB × 16 = 8 MiB for the receive pool, which is the only large pool.
    ///
    /// Reading, digesting and sending a chunk are cheap while the chunk stays in the processor's cache, and 512 KiB fit
    /// the L2 cache of a server of the last ten years. Half of that size costs a tenth more (two system calls, a
    /// wake-up and a header for half the bytes), and twice that size already falls out of the cache. Measured by
    /// `scripts/bench`.
    fn default() -> Self {
        let handshake_timeout = crate::faults::handshake_timeout(Duration::from_secs(10));
        Self {
            chunk_bytes: 512 << 10,
            depth: 16,
            timeout: Duration::from_secs(30),
            connect_timeout: RETRY_FOR + handshake_timeout,
            retry_for: RETRY_FOR,
            handshake_timeout,
            transport: TransportPolicy::Auto,
            encryption: Encryption::Auto,
            rdma: RdmaConfig::default(),
            copy_received: false,
            direction: Direction::Both,
            rails: Rails::One,
            on_drop: OnDrop::Abort,
            control_runtime: None,
            keepalive_runtime: None,
            #[cfg(feature = "fault-injection")]
            faults: crate::Faults::default(),
        }
    }
}

/// The default of [`StreamConfig::retry_for`].
const RETRY_FOR: Duration = Duration::from_secs(3);

/// The settings of a stream over RDMA.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// The payload of one chunk, in bytes. Each chunk is a registered buffer.
    pub chunk_bytes: usize,
    /// The number of chunks of each pool. Chunk size and depth are reduced to fit the memlock limit.
    pub depth: usize,
    /// The only device that may be used, by its name under `/sys/class/infiniband`. `None` allows all devices.
    pub device: Option<String>,
    /// The only port of each device that may be used, counted from 1. `None` allows all ports.
    pub port: Option<u8>,
    /// The only index of each port's GID table that may be used. `None` allows all indices.
    pub gid_index: Option<u8>,
    /// The traffic class of each packet (on RoCE v2 the DSCP and ECN bits of the IP header).
    pub traffic_class: u8,
    /// The service level, 0 to 15 (on RoCE the VLAN priority).
    pub service_level: u8,
    /// The index in the port's partition key table.
    pub pkey_index: u16,
    /// The number of completed operations after which an end replaces its link. Each operation leaks 64 to 128 bytes of
    /// kernel memory, which only closing the link frees. The stream's users do not notice the replacement.
    pub renew_after: u64,
    /// The number of frames of up to 4 KiB that may be in flight in each direction on the express path, a second queue
    /// pair with lower latency. Rounded down to a power of two; the smaller number of the two ends counts. Without a
    /// express path (0, or if it cannot be pinned or opened, at either end) small writes use the same queue pair as
    /// large ones.
    pub small_frames: u32,
    /// How long a read polls the express path before it waits for an event; at most 10 ms. Zero never polls, which
    /// costs some system calls for each message and no processor time in between. `None` polls up to 50 µs, or up to a
    /// millisecond on a machine that is slow to wake a thread (four times as long as that takes), while at least one
    /// poll in eight finds a frame. Polling holds up the thread of the runtime.
    pub busy_poll: Option<Duration>,
}

impl Default for RdmaConfig {
    /// Returns the default settings for RDMA: a pool of 2 MiB × 4 = 8 MiB. A two-way stream has two pools of 3 chunks.
    /// With headers, rings and small receives they stay below the 16 MiB that one end of a stream pins at most.
    ///
    /// Over RDMA, operations and wake-ups cost more than bytes, so chunks are large. There are enough of them that one
    /// is filled, one is in flight and one is read. Deeper pools of the same chunks were measured to be slower: bytes
    /// that are written, copied by the device or its driver, verified and read must come out of the processor's caches.
    ///
    /// On a machine of one processor the pool is 3 MiB × 2. There no two steps run at the same time, and the pool with
    /// the fewest switches and the least cache was measured to be the fastest, by a tenth.
    fn default() -> Self {
        let has_one_processor = thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let (chunk_bytes, depth) = if has_one_processor {
            ONE_PROCESSOR_POOL
        } else {
            POOL
        };
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
            small_frames: SMALL_FRAMES,
            busy_poll: None,
        }
    }
}

/// The chunk size and depth on a machine with several processors.
pub(crate) const POOL: (usize, usize) = (2 << 20, 4);

/// The chunk size and depth on a machine with one processor.
pub(crate) const ONE_PROCESSOR_POOL: (usize, usize) = (3 << 20, 2);

/// The default of [`RdmaConfig::renew_after`]: a quarter of a million operations. That is at most 32 MiB of kernel
/// memory for each end, and half a tebibyte of chunks of the default size between two renewals of some milliseconds.
const RENEW_AFTER: u64 = 1 << 18;

/// The default of [`RdmaConfig::small_frames`]: 276 KiB at each end of a two-way stream.
const SMALL_FRAMES: u32 = 32;

/// The transports that a stream may use.
///
/// The handshake and the orders of agents carry the number of the variant: a change of their order is a change of both
/// wire formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum TransportPolicy {
    /// RDMA if both ends have it and a message has crossed it, otherwise TCP.
    #[default]
    Auto,
    /// RDMA only: an error if RDMA is not possible.
    Rdma,
    /// TCP only, even if both ends have RDMA.
    Tcp,
}

/// Whether the data of a stream is encrypted. Both ends choose, and a stream whose ends contradict each other is refused.
///
/// The cipher is AES-256-GCM, or ChaCha20-Poly1305 if one of the processors has no instructions for AES.
///
/// The handshake and the orders of agents carry the number of the variant: a change of their order is a change of both
/// wire formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Encryption {
    /// Encrypted if the data leaves the machine. Two ends are on one machine if they know the same boot of its kernel
    /// and the same network namespace, and the connection comes from the address that it leads to.
    #[default]
    Auto,
    /// Encrypted in any case.
    Always,
    /// Not encrypted: for networks that are trusted. Both ends must choose it, unless they are on one machine. A digest
    /// still finds damage, and keeps no attacker out: who can change what travels between the hosts can read the data,
    /// and change it unnoticed.
    Never,
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

/// The number of rails of a stream: of data connections, each with a pool and a thread at each end, that carry its chunks
/// beside each other. Both ends use the same number.
///
/// The orders of agents carry the number of the variant: a change of their order is a change of their wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Rails {
    /// One rail, whatever the other end asks for: the user of the stream drives it.
    #[default]
    One,
    /// Half of the processors of the end that has fewer, at most 8; the number of the other end if its
    /// user has set one.
    Auto,
    /// This number; the smaller one if both users have set one.
    Exactly(u8),
}

/// The most rails that an end has whose user has not set their number. Beyond it, memory and the kernel's own work are
/// the limit on machines with 16 processors.
pub(crate) const MOST_AUTOMATIC_RAILS: u8 = 8;

/// The most rails that a user can set.
pub(crate) const MOST_RAILS: u8 = 32;

/// What happens when a [`Stream`](crate::Stream) or its [`WriteHalf`](crate::WriteHalf) is dropped before its
/// [`shutdown`](tokio::io::AsyncWriteExt::shutdown) has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDrop {
    /// The stream is aborted: the peer's reads and writes fail with [`Error::PeerAborted`](crate::Error::PeerAborted).
    /// So a task that was cancelled or has returned early never looks like a complete answer.
    #[default]
    Abort,
    /// The stream ends as a TCP connection does: what was written is sent, followed by FIN, in the background. For
    /// frameworks that drop what they own, such as `tokio_util`'s `Framed`, and whose protocols mark their own ends.
    ///
    /// The peer cannot tell this end from a `shutdown`: **a task that was cancelled in the middle of an answer looks
    /// like the end of a shorter answer.** Use this only if the peer detects an incomplete message, as HTTP with a
    /// length or chunks, HTTP/2, gRPC and every framed protocol do. A drop while its thread panics still aborts the
    /// stream.
    ///
    /// The peer has [`StreamConfig::timeout`] to take the remaining bytes, then the stream is aborted. The end of the
    /// process or of the runtime does not wait for them: a program that is about to exit calls `shutdown`, or
    /// [`Stream::close`](crate::Stream::close).
    Fin,
}

/// The direction in which bytes travel, seen from the end that holds the value. The two ends of a one-way
/// stream must be configured for opposite directions; an end with `Both` takes the direction that the other end leaves.
///
/// The handshake and the orders of agents carry the number of the variant: a change of their order is a change of both
/// wire formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Direction {
    /// This end sends and receives.
    #[default]
    Both,
    /// This end only sends: it has no receive pool, and reading returns an end of file at once.
    Send,
    /// This end only receives: it has no send pool, and writing fails.
    Receive,
}

impl Direction {
    /// Returns true if this end sends.
    #[must_use]
    pub fn sends(self) -> bool {
        self != Self::Receive
    }

    /// Returns true if this end receives.
    #[must_use]
    pub fn receives(self) -> bool {
        self != Self::Send
    }
}
