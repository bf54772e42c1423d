//! The public types of a stream: both halves, each half, and the buffers that a stream lends.
//!
//! | file | what it has |
//! |---|---|
//! | [`stream`] | [`Stream`]: both halves |
//! | `rdma_stream` | [`RdmaStream`]: a stream that never uses TCP for its data |
//! | [`write_half`], [`read_half`] | the two halves |
//! | [`info`] | what was agreed on, and the methods that report it |

pub(crate) mod info;
#[cfg(feature = "rdma")]
mod rdma_stream;
pub(crate) mod read_half;
#[allow(
    clippy::module_inception,
    reason = "the folder is the layer, the file its main type"
)]
pub(crate) mod stream;
pub(crate) mod write_half;

pub use self::info::Transport;
pub use self::info::Watch;
pub use self::write_half::SendBuffer;
#[cfg(feature = "rdma")]
pub use rdma_stream::{NotRdma, RdmaStream};
pub use read_half::ReadHalf;
pub use stream::{ReuniteError, Stream};
pub use write_half::WriteHalf;
