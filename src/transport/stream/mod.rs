//! The public types of a stream: both halves, each half, and the buffers that a stream lends.
//!
//! | file | what it has |
//! |---|---|
//! | [`stream`] | [`Stream`]: both halves |
//! | `rdma_stream` | [`RdmaStream`]: a stream that never uses TCP for its data |
//! | [`write_half`], [`read_half`] | the two halves |
//! | [`send_buffer`] | a slot of the sending pool, lent to the program |
//! | [`either`](mod@either) | the enum over the data paths through which every call goes |
//! | [`info`] | what was agreed on, and the methods that report it |
//! | [`transport`] | what carries the data: TCP or RDMA |
//! | [`watch`] | a view of a stream whose halves are in use elsewhere |

pub(crate) mod either;
pub(crate) mod info;
#[cfg(feature = "rdma")]
mod rdma_stream;
pub(crate) mod read_half;
pub(crate) mod send_buffer;
#[allow(
    clippy::module_inception,
    reason = "the folder is the layer, the file its main type"
)]
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
