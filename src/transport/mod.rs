//! One stream between two processes, in layers. A layer depends only on the layers below it.
//!
//! In the order in which a byte meets them:
//!
//! | folder | turns | into |
//! |---|---|---|
//! | [`connect`](mod@connect) | a TCP socket | a stream |
//! | [`stream`](mod@stream) | reads and writes of the program | calls of the half that carries them |
//! | [`rdma`] | frames in registered memory | frames in the peer's registered memory |
//! | [`data`] | bytes | frames; also carries frames over TCP |
//! | [`control`] | messages under Noise | the state that both halves share |
//!
//! [`fuzzing`](self) has the entry points of the fuzz targets. Nothing else depends on it.

mod connect;
pub(crate) mod control;
mod data;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(not(feature = "rdma"))]
#[path = "rdma/absent.rs"]
mod rdma;
pub(super) mod stream;

#[cfg(feature = "cli")]
pub(crate) use self::data::slots::FillSlots;
pub use connect::{
    Incoming, Listener, ListenerStats, LiveStreams, PeerAddress, ToPeerAddress, connect,
    connect_with,
};
#[cfg(feature = "cli")]
pub(crate) use connect::{KeyAcceptor, KnownKeys, preamble::PROTOCOL_VERSION};
pub use control::seal::Cipher;
#[cfg(feature = "rdma")]
pub(crate) use rdma::open;
#[cfg(all(feature = "cli", feature = "rdma"))]
pub(crate) use rdma::raw;
#[cfg(all(feature = "cli", feature = "rdma"))]
pub(crate) use rdma::{Device, GidEntry, Inventory, LocalPorts, Memlock, Port, Roots};
#[cfg(feature = "rdma")]
pub use stream::{NotRdma, RdmaStream};
#[cfg(feature = "cli")]
pub(crate) use stream::{Rail, RecvEither, SendEither};
pub use stream::{ReadHalf, ReuniteError, SendBuffer, Stats, Stream, Transport, Watch, WriteHalf};

/// Every public type can be moved to another task, and polled without being pinned first.
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
    #[cfg(feature = "rdma")]
    can_be_moved::<open::ProtectionDomain>();
    #[cfg(feature = "rdma")]
    can_be_moved::<open::CompletionQueue>();
};
