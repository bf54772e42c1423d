//! From a TCP socket to a stream: dialling and listening, the handshake, the choice of what carries the
//! data, and the start of the stream's tasks.

pub(crate) mod dial;
pub(crate) mod handshake;
pub(crate) mod listener;
mod negotiate;
pub(crate) mod preamble;
#[cfg(feature = "rdma")]
mod rdma_stream;
mod start;

pub use dial::connect;
pub use listener::Listener;
