//! One stream between two processes, in layers. Each layer uses only those below it:
//!
//! | folder | from | to |
//! |---|---|---|
//! | [`connect`] | a TCP socket | a stream |
//! | [`stream`] | a stream's halves | what users hold |
//! | [`rdma`] | ports, queue pairs, registered memory | frames over RDMA |
//! | [`data`] | the user's bytes | frames, and frames over TCP |
//! | [`control`] | messages under Noise | the state of a stream |

mod connect;
mod control;
mod data;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "rdma/absent.rs"]
mod rdma;
mod stream;

pub use connect::{Listener, connect};
pub(crate) use data::fill_slots::FillSlots;
#[cfg(feature = "rdma")]
pub use stream::{NotRdma, RdmaStream};
pub use stream::{ReadHalf, ReuniteError, SendBuffer, Stream, Watch, WriteHalf};

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
