//! UNIX pipes from one machine to another at link speed, over RDMA or TCP.
//!
//! A [`Stream`] is an authenticated, checked connection between two processes that reads and
//! writes like any tokio stream. One end listens, the other dials, both with the same [`Key`]:
//!
//! ```
//! use rdpipe::{Key, Listener, StreamConfig, connect};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = Key::generate()?;
//! let config = StreamConfig::default();
//! let mut listener = Listener::bind("127.0.0.1:0".parse()?, key.key().clone(), config.clone())?;
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
//! let mut stream = connect("127.0.0.1", port, key.key(), &config).await?;
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
//! # RDMA and TCP
//!
//! Listening, authenticating and everything that controls a stream happen over TCP. Its bytes go over
//! RDMA where both ends have it and a message has crossed it, otherwise over TCP;
//! [`StreamConfig::transport`] says which are allowed, [`Stream::transport`] which it is, and
//! [`Stream::transport_reason`] why, or over which port. `RdmaStream`, in builds with the default
//! feature `rdma`, is a stream that is RDMA or an error. Over RDMA a chunk is one write by the
//! sender's device into a registered slot of the receiver's: at most 16 MiB are pinned for one end of a
//! stream, and less where the memlock limit wants it ([`RdmaConfig`]).
//!
//! # What a stream promises
//!
//! - **Bytes in order, or an error.** Every chunk carries its offset and a digest chained to the
//!   one before, and is verified before it is delivered. Only a FIN is an end of file: a peer that
//!   dies, drops its stream, or loses its connection is an error ([`Error`]).
//! - **Two different ends.** `shutdown` completes when the peer's endpoint holds and has verified
//!   every byte, as users of TCP expect; [`Stream::finish`] when the peer's program has said with
//!   [`Stream::confirm`] that it took them.
//! - **Bounded memory.** Pools never grow; an empty pool is the backpressure ([`StreamConfig`]).
//! - **A dead peer is noticed**: at once when its process dies, within
//!   [`StreamConfig::timeout`] when its host does. A peer that merely pauses is not dead.
//! - **Nobody gets in** without the key, and nothing is allocated for whoever tries.
//!
//! How a byte travels, what crosses the wire, and the states of a stream are described in
//! `docs/architecture.md`.

#[doc(hidden)]
pub mod cli;
mod config;
mod error;
mod faults;
mod fd;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    //! Everything that parses bytes from elsewhere.
    pub use crate::{ssh::fuzzing::*, transport::fuzzing::*};
}
mod key;
mod pump;
mod ssh;
mod stats;
mod transport;

pub use config::{
    Direction, MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES, MIN_DEPTH, RdmaConfig, StreamConfig,
    TransportPolicy,
};
pub use error::{Error, Fault, HandshakeFault};
#[cfg(feature = "fault-injection")]
pub use faults::Faults;
pub use key::{GeneratedKey, Key, KeyError};
pub use stats::Stats;
pub use transport::{
    Listener, ReadHalf, ReuniteError, SendBuffer, Stream, Transport, Watch, WriteHalf, connect,
};
#[cfg(feature = "rdma")]
pub use transport::{NotRdma, RdmaStream};
