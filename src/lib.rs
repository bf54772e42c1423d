//! UNIX pipes from one machine to another at link speed, over RDMA or TCP.
//!
//! A [`Stream`] is an authenticated, checked connection between two processes that reads and
//! writes like any tokio stream. One end listens, the other dials, both with the same [`Key`]:
//!
//! ```
//! use rdpipe::{Key, Stream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = Key::generate()?;
//! let builder = Stream::builder(key.key());
//! let mut listener = builder.bind("127.0.0.1:0".parse()?)?;
//! let port = listener.local_addr().port();
//!
//! let server = tokio::spawn(async move {
//!     let mut stream = listener.accept().await?;
//!     let mut request = String::new();
//!     stream.read_to_string(&mut request).await?;
//!     stream.write_all(request.to_uppercase().as_bytes()).await?;
//!     stream.shutdown().await // a FIN: only that is an end of file for the peer
//! });
//!
//! let mut stream = builder.connect("127.0.0.1", port).await?;
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
//! [`Builder`] has the settings and their defaults. The key is what [`Key::generate`] made and one end
//! told the other, or any secret that both have ([`Key::parse`]).
//!
//! # RDMA and TCP
//!
//! Listening, authenticating and everything that controls a stream happen over TCP. Its bytes go over
//! RDMA where both ends have it and a message has crossed it, otherwise over TCP;
//! [`Builder::transport`] says which are allowed, [`Stream::transport`] which it is, and
//! [`Stream::transport_reason`] why, or over which port. `RdmaStream`, in builds with the default
//! feature `rdma`, is a stream that is RDMA or an error:
//!
//! ```no_run
//! # #[cfg(feature = "rdma")]
//! # async fn example(key: &rdpipe::Key) -> Result<(), Box<dyn std::error::Error>> {
//! let mut rdma_stream = rdpipe::RdmaStream::builder(key).connect_rdma("hostB", 12345).await?;
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
//! A stream moves its bytes in chunks, from a pool of slots into a pool of slots of the peer's: registered
//! memory over RDMA, plain memory over TCP. A slot is written only when the peer has given a credit for
//! it; an empty pool is the backpressure, and no pool grows. At most 16 MiB are pinned for one end of
//! a stream, and less where the memlock limit wants it ([`RdmaConfig`]).
//!
//! | to | call | copies in this process |
//! |---|---|---|
//! | write what is elsewhere | [`write`], [`write_vectored`], [`copy`] | one |
//! | fill a slot in place | [`Stream::send_buffer`], [`Stream::send`] | none |
//! | read into a buffer | [`read`] | one |
//! | look at a slot | [`fill_buf`] and [`consume`], [`copy_buf`] | none |
//! | keep a slot | [`Stream::read_chunk`] | none while two slots stay free |
//!
//! What is written is on its way at once when nothing else is, and is gathered into chunks otherwise: a
//! request needs no flush before its answer is waited for.
//!
//! ```
//! # use rdpipe::{Key, Stream};
//! # use tokio::io::AsyncWriteExt;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let key = Key::generate()?;
//! # let mut listener = Stream::builder(key.key()).bind("127.0.0.1:0".parse()?)?;
//! # let port = listener.local_addr().port();
//! # let builder = Stream::builder(key.key());
//! # let (sender, receiver) = tokio::join!(builder.connect("127.0.0.1", port), listener.accept());
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
//! - **Bytes in order, or an error.** Every chunk carries its offset and a digest chained to the
//!   one before, and is verified before it is delivered. Only a FIN is an end of file: a peer that
//!   dies, drops its stream, or loses its connection is an error ([`Error`]; inside a tokio trait
//!   [`Error::from_io`] finds it).
//! - **Bounded memory.** Pools never grow ([`StreamConfig`]).
//! - **A dead peer is noticed**: at once when its process dies, within
//!   [`StreamConfig::timeout`] when its host does. A peer that merely pauses is not dead.
//! - **Nobody gets in** without the key, and nothing is allocated for whoever tries.
//! - **Nothing is lost by cancelling.** Every future of a stream's may be dropped at any time, as
//!   `select!` does: reads have taken nothing, and writes have accepted their bytes or not. (`write_all`
//!   and `read_exact` are tokio's: whoever drops one of them cannot know how far it had come.)
//!
//! # How a stream ends
//!
//! | this end | the peer |
//! |---|---|
//! | [`shutdown`] sends FIN; it completes when the peer's *endpoint* holds and has verified every byte, as users of TCP expect, whoever reads them | reads to the end of file |
//! | [`Stream::finish`] goes on until the peer's *program* has taken them | says so with [`Stream::confirm`], once what it did with them is done |
//! | [`Stream::stop`]: no more is wanted, and that is fine | its writes fail with [`Error::Stopped`] |
//! | [`Stream::abort`]: something broke | reads and writes fail with [`Error::PeerAborted`] and the reason |
//! | dropped before its end | the same, so that a panic does not look like an end |
//!
//! Each direction ends by itself, so `shutdown` leaves the other one open. A program that exits right
//! after a stream's end calls [`Stream::close`], which waits until the last message is out.
//!
//! # Features
//!
//! | feature | default | brings |
//! |---|---|---|
//! | `rdma` | yes | `RdmaStream`, and RDMA for every [`Stream`]; needs libibverbs, librdmacm and libclang to build |
//! | `cli` | yes | the programs `rdpipe`, `rdsend`, `rdrecv` and `rdcat`, and their dependencies; nothing of this API |
//! | `fault-injection` | no | `Faults`: ways to break the protocol on purpose, for tests |
//!
//! A program that only wants streams says `default-features = false, features = ["rdma"]`, or without `rdma` for TCP alone.
//!
//! How it is made, what crosses the wire, and the states of a stream are described in
//! `docs/architecture.md`.
//!
//! [`write`]: tokio::io::AsyncWriteExt::write
//! [`write_vectored`]: tokio::io::AsyncWriteExt::write_vectored
//! [`copy`]: tokio::io::copy
//! [`read`]: tokio::io::AsyncReadExt::read
//! [`fill_buf`]: tokio::io::AsyncBufReadExt::fill_buf
//! [`consume`]: tokio::io::AsyncBufReadExt::consume
//! [`copy_buf`]: tokio::io::copy_buf
//! [`shutdown`]: tokio::io::AsyncWriteExt::shutdown

#[cfg(feature = "cli")]
mod advice;
mod builder;
#[cfg(feature = "cli")]
mod carry;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod config;
mod error;
mod faults;
#[cfg(feature = "cli")]
mod fd;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    //! Everything that parses bytes from elsewhere.
    #[cfg(feature = "cli")]
    pub use crate::ssh::fuzzing::*;
    pub use crate::transport::fuzzing::*;

    /// A ticket, as somebody has typed it.
    #[cfg(feature = "cli")]
    pub fn ticket(data: &[u8]) {
        crate::reach::ticket::fuzz(data);
    }
}
mod host;
mod key;
#[cfg(feature = "cli")]
mod reach;
#[cfg(feature = "cli")]
mod ssh;
mod stats;
mod transport;

pub use builder::Builder;
pub use config::{
    Direction, MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES, MIN_DEPTH, RdmaConfig, StreamConfig,
    TransportPolicy,
};
pub use error::{DeviceFault, Error, Fault, HandshakeFault};
#[cfg(feature = "fault-injection")]
pub use faults::Faults;
pub use key::{GeneratedKey, Key, KeyError, KeyText};
pub use stats::Stats;
pub use transport::{
    Listener, ReadHalf, ReuniteError, SendBuffer, Stream, Transport, Watch, WriteHalf, connect,
};
#[cfg(feature = "rdma")]
pub use transport::{NotRdma, RdmaStream};
