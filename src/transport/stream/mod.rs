//! What users hold: the stream, its halves, buffers to send, and a view of a stream from elsewhere.

pub(crate) mod either;
pub(crate) mod info;
#[cfg(feature = "rdma")]
mod rdma_stream;
pub(crate) mod read_half;
pub(crate) mod send_buffer;
pub(crate) mod stream;
pub(crate) mod transport;
mod watch;
pub(crate) mod write_half;

#[cfg(feature = "rdma")]
pub use rdma_stream::{NotRdma, RdmaStream};
pub use read_half::ReadHalf;
pub use send_buffer::SendBuffer;
pub use stream::{ReuniteError, Stream};
pub use transport::Transport;
pub use watch::Watch;
pub use write_half::WriteHalf;
