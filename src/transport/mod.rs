//! One stream between two processes: negotiation, data path, control connection.

mod codec;
mod control;
mod dial;
mod either;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handshake;
mod info;
mod lending;
mod line;
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
mod read_half;
mod readable;
mod receiver;
mod recv;
mod send;
mod send_buffer;
mod sender;
mod shared;
mod start;
mod state;
mod steward;
mod stream;
mod tcp;
mod terms;
mod watch;
mod wire;
mod write_half;

pub use dial::connect;
pub use listener::Listener;
#[cfg(feature = "rdma")]
pub use rdma_stream::{NotRdma, RdmaStream};
pub use read_half::ReadHalf;
pub use send_buffer::SendBuffer;
pub use stream::{ReuniteError, Stream};
pub(crate) use terms::host_name;
pub use watch::Watch;
pub use write_half::WriteHalf;

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

/// What users hold can be moved to any task, and polled without being pinned first.
const _: () = {
    const fn can_be_moved<T: Send + Sync + Unpin + 'static>() {}
    can_be_moved::<Stream>();
    can_be_moved::<ReadHalf>();
    can_be_moved::<WriteHalf>();
    can_be_moved::<SendBuffer>();
    can_be_moved::<Watch>();
    can_be_moved::<Listener>();
    #[cfg(feature = "rdma")]
    can_be_moved::<RdmaStream>();
};
