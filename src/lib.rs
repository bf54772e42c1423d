//! UNIX pipes from one machine to another at link speed, over RDMA or TCP.

#[doc(hidden)]
pub mod cli;
mod config;
mod error;
mod faults;
mod fd;
mod key;
mod pump;
mod stats;
mod transport;

pub use config::{
    Direction, MAX_CHUNK_BYTES, MAX_DEPTH, MIN_CHUNK_BYTES, MIN_DEPTH, StreamConfig,
    TransportPolicy,
};
pub use error::{Error, Fault, HandshakeFault};
#[cfg(feature = "fault-injection")]
pub use faults::Faults;
pub use key::{GeneratedKey, Key, KeyError};
pub use stats::Stats;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use transport::fuzzing;
pub use transport::{Listener, ReadHalf, Stream, Transport, Watch, WriteHalf, connect};
