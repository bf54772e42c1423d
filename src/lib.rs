//! UNIX pipes from one machine to another at link speed, over RDMA or TCP.
//!
//! A [`Stream`] is an authenticated, checked connection between two processes. Programs read and write it like any
//! tokio stream. One end listens and the other connects, both with the same [`Key`]:
//!
//! ```
//! use rdpipe::{Key, Stream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = Key::generate()?;
//! let builder = Stream::builder(&key);
//! let listener = builder.bind("127.0.0.1:0").await?;
//! let address = listener.local_addr();
//!
//! let server = tokio::spawn(async move {
//!     let mut stream = listener.accept().await?;
//!     let mut request = String::new();
//!     stream.read_to_string(&mut request).await?;
//!     stream.write_all(request.to_uppercase().as_bytes()).await?;
//!     stream.shutdown().await // a FIN: only that is an end of file for the peer
//! });
//!
//! let mut stream = builder.connect(address).await?;
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! assert_eq!(answer, "HELLO");
//! # server.await??;
//! # Ok(())
//! # }
//! ```
//!
//! [`Builder`] has the settings and their defaults. The key is one that [`Key::generate`] made and that was passed to the
//! other end, or any secret that both ends have ([`Key::parse`]).
//!
//! # RDMA and TCP
//!
//! The listener, the authentication and the control of a stream use TCP. The bytes go over RDMA if both ends have it
//! and a message has crossed it, otherwise over TCP. [`Builder::transport`] sets the transports that are allowed.
//! [`Stream::transport`] returns the one in use, and [`Stream::transport_reason`] the reason or the RDMA port.
//! `RdmaStream`, in builds with the default feature `rdma`, uses RDMA or fails:
//!
//! ```no_run
//! # #[cfg(feature = "rdma")]
//! # async fn example(key: &rdpipe::Key) -> Result<(), Box<dyn std::error::Error>> {
//! let mut rdma_stream = rdpipe::RdmaStream::builder(key).connect_rdma("hostB:12345").await?;
//! tokio::io::copy(&mut tokio::io::stdin(), &mut rdma_stream).await?;
//! rdma_stream.finish().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The path of a byte
//!
//! ```text
//!  your buffer ──copy──► slot ──one RDMA WRITE, or one send(2)──► the peer's slot ──► its reader
//!                        [header|payload]                         [header|payload]
//!                          ▲    a credit for each slot goes back over the control connection ◄──┘
//! ```
//!
//! A stream moves its bytes in chunks, from a pool of slots at this end into a pool of slots at the peer. Slots are
//! registered memory over RDMA, and plain memory over TCP. A stream writes into a slot only after the peer has given a
//! credit for it. An empty pool is the backpressure, and no pool grows. One end of a stream pins at most 16 MiB, and
//! less where the memlock limit allows less ([`RdmaConfig`]).
//!
//! | to | call | copies in this process |
//! |---|---|---|
//! | write bytes from another buffer | [`write`], [`write_vectored`], [`copy`] | one |
//! | fill a slot in place | [`Stream::send_buffer`], [`Stream::send`] | none |
//! | read into a buffer of yours | [`read`] | one |
//! | read a slot in place | [`fill_buf`] and [`consume`], [`copy_buf`] | none |
//! | keep a slot that was received | [`Stream::read_chunk`] | none while two slots stay free |
//!
//! Written bytes are sent at once if no other chunk is in flight; otherwise they are gathered into chunks. A program
//! that writes a request and waits for the answer needs no flush.
//!
//! ```
//! # use rdpipe::{Key, Stream};
//! # use tokio::io::AsyncWriteExt;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let key = Key::generate()?;
//! # let builder = Stream::builder(&key);
//! # let listener = builder.bind("127.0.0.1:0").await?;
//! # let dialing = builder.connect(listener.local_addr());
//! # let (sender, receiver) = tokio::join!(dialing, listener.accept());
//! # let (mut sender, mut receiver) = (sender?, receiver?);
//! let mut buffer = sender.send_buffer().await?;
//! buffer.unfilled_mut()[..9000].fill(7); // in the slot itself
//! buffer.advance(9000);
//! sender.send(buffer)?;
//! sender.shutdown().await?;
//!
//! let chunk = receiver.read_chunk().await?.expect("a chunk"); // bytes::Bytes: the slot that it arrived in
//! assert_eq!(chunk, vec![7; 9000]);
//! assert!(receiver.read_chunk().await?.is_none()); // the end
//! drop(receiver);
//! assert_eq!(chunk[8999], 7); // still there
//! # Ok(())
//! # }
//! ```
//!
//! # What a stream promises
//!
//! - **Bytes in order, or an error.** Every chunk carries its offset and a digest of its bytes and its offset, which is
//!   verified before delivery. The FIN carries a digest over all digests. Only a FIN is an end of file. A peer that
//!   dies, drops its stream, or loses its connection causes an [`Error`]; in the [`io::Error`](std::io::Error) of a
//!   tokio trait,
//!   [`Error::from_io`] finds it.
//! - **Memory is bounded.** Pools never grow ([`StreamConfig`]).
//! - **A dead peer is detected**: at once if its process dies, within [`StreamConfig::timeout`] if its host dies. A
//!   peer that pauses is not treated as dead. A data connection that delivers nothing while the peer is alive is
//!   detected too.
//! - **Strangers stay out.** A peer without the key gets no stream, and no pool is allocated for it.
//! - **Cancelling loses no bytes.** Every future of a stream may be dropped at any time, as `select!` does. A read that
//!   is dropped has taken no byte; a write that is dropped has either accepted its bytes or none of them. (`write_all`
//!   and `read_exact` are loops in tokio: a program that drops one of these futures cannot tell how many bytes it has
//!   moved.)
//!
//! # How a stream ends
//!
//! | this end | the peer |
//! |---|---|
//! | [`shutdown`] sends FIN, and completes when the peer's *endpoint* holds and has verified every byte, as users of TCP expect | reads to the end of file |
//! | [`Stream::finish`] sends FIN, and completes when the peer's *program* has taken every byte | calls [`Stream::confirm`] after it has stored the bytes |
//! | [`Stream::stop`]: this end needs no more bytes, which is not a failure | its writes fail with [`Error::Stopped`] |
//! | [`Stream::abort`]: this end has failed | its reads and writes fail with [`Error::PeerAborted`] and the reason |
//! | dropped after its `shutdown` has completed | may still end its own direction; if it goes on to write, its writes fail with [`Error::Stopped`] |
//! | dropped before that, for example by a panic | its reads and writes fail with [`Error::PeerAborted`]: a panic must not look like an end of file |
//! | dropped before that, with [`OnDrop::Fin`] and without a panic | reads what was written, and then the end of file |
//! | only the [`ReadHalf`] is dropped | as after `shutdown`: its writes fail soon, and it reads on |
//!
//! Each direction ends by itself, so `shutdown` leaves the other direction open. A `shutdown` that was cancelled still
//! sends its FIN. A program that exits right after the end
//! of a stream calls [`Stream::close`] first, which waits until the last message has been sent.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `rdma` | yes | `RdmaStream`, RDMA for every [`Stream`], and queue pairs of your own in `verbs`; needs libibverbs, librdmacm and libclang to build |
//! | `cli` | yes | the programs `rdpipe`, `rdcp`, `rdforward`, `rdperf`, `rdsend`, `rdrecv`, `rdcat` and `rdsh`, and their dependencies; it adds nothing to this API |
//! | `axum` | no | `axum::serve(listener, app)`: axum's `Listener` for [`Listener`], and `PeerInfo` for its handlers |
//! | `tonic` | no | `serve_with_incoming(listener.incoming())`: tonic's `Connected` for [`Stream`], and `PeerInfo` for its handlers |
//! | `fault-injection` | no | `Faults`: ways to break the protocol on purpose, for tests |
//!
//! A program that uses only streams sets `default-features = false, features = ["rdma"]`, or no features for TCP only.
//!
//! `docs/architecture.md` follows the path of a byte, and `docs/wire-format.md` has the wire format and the states of a
//! stream.
//!
//! [`write`]: tokio::io::AsyncWriteExt::write
//! [`write_vectored`]: tokio::io::AsyncWriteExt::write_vectored
//! [`copy`]: tokio::io::copy
//! [`read`]: tokio::io::AsyncReadExt::read
//! [`fill_buf`]: tokio::io::AsyncBufReadExt::fill_buf
//! [`consume`]: tokio::io::AsyncBufReadExt::consume
//! [`copy_buf`]: tokio::io::copy_buf
//! [`shutdown`]: tokio::io::AsyncWriteExt::shutdown

#![cfg_attr(
    test,
    allow(
        clippy::missing_panics_doc,
        reason = "the entry points of the fuzz targets are compiled too, whose panics are what they find"
    )
)]

/// The code on this page runs as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct LibraryPage;

#[cfg(feature = "cli")]
mod advice;
mod builder;
#[cfg(feature = "cli")]
mod carry;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod config;
#[cfg(feature = "cli")]
mod copy;
mod error;
mod faults;
#[cfg(feature = "cli")]
mod fd;
#[cfg(feature = "cli")]
mod forward;
#[cfg(any(feature = "axum", feature = "tonic"))]
mod frameworks;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    //! Entry points of the fuzz targets: every parser of bytes that come from outside the process.
    pub use crate::transport::fuzzing::*;
    #[cfg(feature = "cli")]
    pub use crate::{copy::fuzz as copy, perf::fuzzing::perf_messages, ssh::fuzzing::*};

    /// Parses `data` as the key file of a server.
    #[cfg(feature = "cli")]
    pub fn client_keys(data: &[u8]) {
        crate::cli::fuzz_client_keys(data);
    }

    /// Serves the session of a hostile client whose decisions are `data`.
    #[cfg(feature = "cli")]
    pub fn served_session(data: &[u8]) {
        crate::cli::fuzz_served_session(data);
    }

    /// Handles `data` as what the other end of a tunnel sends.
    #[cfg(feature = "cli")]
    pub fn forward_frames(data: &[u8]) {
        crate::forward::mux::fuzz(data);
    }

    /// Parses `data` as what a client of `-D` sends.
    #[cfg(feature = "cli")]
    pub fn socks(data: &[u8]) {
        crate::forward::socks::fuzz(data);
    }

    /// Parses `data` as a ticket that a user typed.
    #[cfg(feature = "cli")]
    pub fn ticket(data: &[u8]) {
        crate::reach::ticket::fuzz(data);
    }

    /// Every input that the fuzz targets begin with, those that failed once among them.
    #[cfg(all(test, feature = "cli"))]
    #[test]
    fn every_seed_is_parsed_or_refused() {
        type Target = (&'static str, fn(&[u8]));
        const TARGETS: &[Target] = &[
            ("agent_messages", agent_messages),
            ("client_keys", client_keys),
            ("control", control),
            ("controller", controller),
            ("copy", copy),
            ("forward_frames", forward_frames),
            ("handshake", handshake),
            ("header", header),
            ("perf_messages", perf_messages),
            ("pipeline", pipeline),
            ("proc_stat", proc_stat),
            #[cfg(feature = "rdma")]
            ("rdma", rdma),
            ("served_session", served_session),
            ("session", session),
            ("socks", socks),
            ("stream", stream),
            ("ticket", ticket),
        ];
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
        for folder in std::fs::read_dir(seeds).expect("the repository has seeds") {
            let folder = folder.expect("a folder").path();
            let is_target = |(name, _): &&Target| folder.ends_with(name);
            let Some((_, target)) = TARGETS.iter().find(is_target) else {
                assert!(folder.ends_with("rdma") && cfg!(not(feature = "rdma")));
                continue;
            };
            for seed in std::fs::read_dir(folder).expect("a folder of seeds") {
                let seed = seed.expect("a seed").path();
                target(&std::fs::read(seed).expect("a file"));
            }
        }
    }
}
mod host;
#[cfg(all(feature = "cli", any(test, fuzzing, feature = "fault-injection")))]
#[doc(hidden)]
pub mod hostile;
mod key;
#[cfg(feature = "cli")]
mod options;
#[cfg(feature = "cli")]
mod perf;
mod places;
mod printable;
#[cfg(feature = "cli")]
mod process;
#[cfg(feature = "cli")]
mod reach;
#[cfg(any(feature = "cli", feature = "rdma", test))]
mod running_time;
#[cfg(feature = "cli")]
mod ssh;
mod threads;
mod transport;
#[cfg(feature = "rdma")]
pub mod verbs;

pub use builder::Builder;
pub use config::{
    Direction, Encryption, MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES, MIN_DEPTH, OnDrop, Rails,
    RdmaConfig, StreamConfig, TransportPolicy,
};
pub use error::{DeviceFault, Error, Fault, HandshakeFault};
#[cfg(feature = "fault-injection")]
pub use faults::Faults;
#[cfg(any(feature = "axum", feature = "tonic"))]
pub use frameworks::PeerInfo;
pub use key::{GeneratedKey, Key, KeyError, KeyId, KeyText};
pub use transport::{
    Cipher, Incoming, Listener, ListenerStats, LiveStreams, PeerAddress, ReadHalf, ReuniteError,
    SendBuffer, Stats, Stream, ToPeerAddress, Transport, Watch, WriteHalf, connect, connect_with,
};
#[cfg(feature = "cli")]
pub(crate) use transport::{KeyAcceptor, KnownKeys};
#[cfg(feature = "rdma")]
pub use transport::{NotRdma, RdmaStream};
