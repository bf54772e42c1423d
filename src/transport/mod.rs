//! One stream between two processes: negotiation, data path, control connection.

mod codec;
mod control;
mod dial;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handshake;
mod listener;
mod message;
mod negotiate;
mod noise;
mod path;
mod preamble;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
#[cfg(feature = "rdma")]
mod rdma_stream;
mod receiver;
mod recv;
mod send;
mod sender;
mod shared;
mod state;
mod steward;
mod stream;
mod tcp;
mod terms;
mod wire;

pub use dial::connect;
pub use listener::Listener;
#[cfg(feature = "rdma")]
pub use rdma_stream::{NotRdma, RdmaStream};
pub use stream::{ReadHalf, Stream, Watch, WriteHalf};
pub(crate) use terms::host_name;

/// What carries the data of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// A TCP connection beside the control connection.
    Tcp,
    /// A queue pair, written to by the peers' devices.
    Rdma,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp => f.write_str("TCP"),
            Self::Rdma => f.write_str("RDMA"),
        }
    }
}
