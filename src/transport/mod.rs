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
pub use stream::{ReadHalf, ReuniteError, SendBuffer, Stream, Transport, Watch, WriteHalf};

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
