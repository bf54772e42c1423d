//! One error enum, by the stage that failed. Every message says what, where and at which byte.

use std::{io, sync::Arc, time::Duration};

/// What went wrong with a stream, by stage.
///
/// Clonable, because both halves of a stream report the same failure. Inside a tokio trait it
/// travels as the source of an [`io::Error`]; [`Error::from_io`] gets it back.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host name has no address.
    #[error("cannot find host {host}: {source}")]
    Resolve {
        /// The name as it was given.
        host: String,
        /// What the resolver said.
        source: Arc<io::Error>,
    },
    /// No address of the peer could be reached in time.
    #[error(
        "cannot connect to {peer}: {source} (tried for {tried:.1?}; is the receiver running, and is the port open?)"
    )]
    Connect {
        /// Host and port as they were given.
        peer: String,
        /// How long it was tried.
        tried: Duration,
        /// The last failure.
        source: Arc<io::Error>,
    },
    /// The listening socket could not be opened.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address and port.
        address: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// RDMA, or the device that the configuration names, cannot be used on this host.
    #[error("{reason}")]
    Device {
        /// What stands in the way.
        fault: DeviceFault,
        /// Why, in words.
        reason: String,
    },
    /// The two ends did not come to terms.
    #[error("{peer}: {fault}")]
    Handshake {
        /// The peer, by name or address.
        peer: String,
        /// On what they fell out.
        fault: HandshakeFault,
    },
    /// This end could not deliver what it was given.
    #[error("sending to {peer} failed at byte {offset}: {fault}")]
    Send {
        /// The peer, by name or address.
        peer: String,
        /// Bytes of this direction that were handed to the data path before the failure.
        offset: u64,
        /// What happened.
        fault: Fault,
    },
    /// This end did not get all that the peer had to give.
    #[error("receiving from {peer} failed at byte {offset}: {fault}")]
    Receive {
        /// The peer, by name or address.
        peer: String,
        /// Bytes of this direction that had arrived and were verified before the failure.
        offset: u64,
        /// What happened.
        fault: Fault,
    },
    /// Everything was sent, but the peer's sink never said that it took it. It may have.
    #[error("delivery to {peer} is unconfirmed: all {bytes} bytes were sent, then {fault}")]
    Unconfirmed {
        /// The peer, by name or address.
        peer: String,
        /// Bytes of this direction in all.
        bytes: u64,
        /// What happened instead of the confirmation.
        fault: Fault,
    },
    /// The peer gave up and said why.
    #[error("{peer} gave up at byte {offset}: {reason}")]
    PeerAborted {
        /// The peer, by name or address.
        peer: String,
        /// Where the peer was in the stream.
        offset: u64,
        /// The peer's own words.
        reason: String,
    },
    /// The peer's reader wants no more, and is content. Not a failure of the stream.
    #[error("{peer} wanted no more after byte {offset}")]
    Stopped {
        /// The peer, by name or address.
        peer: String,
        /// Bytes that the peer's reader had taken.
        offset: u64,
    },
    /// This end had already given up with [`abort`](crate::Stream::abort).
    #[error("the stream was aborted here: {reason}")]
    Aborted {
        /// The reason given.
        reason: String,
    },
    /// The stream cannot do that: written after a shutdown, or against its direction.
    #[error("{0}")]
    Misuse(&'static str),
}

/// What keeps this host from using RDMA, or the device that the configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceFault {
    /// This host lacks the device, port, GID or partition key that [`RdmaConfig`](crate::RdmaConfig) names.
    Choice,
    /// This host has no RDMA device that can be used now.
    Unusable,
    /// The memlock limit is too low for the smallest pool.
    Memlock,
    /// The library was built without the feature `rdma`.
    NotBuilt,
}

/// On what two ends fell out during the handshake.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeFault {
    /// The keys differ.
    #[error("the keys do not match; give both ends the same key")]
    Key,
    /// The two programs speak different versions of the protocol.
    #[error("protocol version {theirs} there, {ours} here; install the same rdpipe on both hosts")]
    Version {
        /// This end's version.
        ours: u8,
        /// The peer's version.
        theirs: u8,
    },
    /// Whoever answered is not rdpipe.
    #[error("what answers there is not rdpipe ({0}); check host and port")]
    NotRdpipe(&'static str),
    /// Both ends want to send, or both to receive.
    #[error("both ends want to {0}; one must send and the other receive")]
    Direction(&'static str),
    /// There is no RDMA, and the configuration of one end does not allow TCP; why there is no RDMA.
    #[error("no RDMA, and one end does not allow TCP: {0}")]
    Transport(String),
    /// The peer took too long.
    #[error("no answer within {0:.1?} during the handshake")]
    Timeout(Duration),
    /// The connection ended during the handshake.
    #[error("the connection broke during the handshake ({0})")]
    Broken(Arc<io::Error>),
    /// A message that this version does not understand, or at a time when it must not come.
    #[error("a handshake message made no sense: {0}")]
    Protocol(&'static str),
    /// The peer refused for a reason of its own.
    #[error("refused: {0}")]
    Refused(String),
}

/// What ended a stream that was open.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer's process is gone: its control connection ended without a goodbye.
    #[error("the other end died ({0})")]
    PeerDied(Arc<io::Error>),
    /// Nothing was heard from the peer, not even a keepalive.
    #[error("nothing was heard from the other end for {0:.1?} (host down or cable out)")]
    PeerSilent(Duration),
    /// The data connection failed.
    #[error("the data connection broke ({0})")]
    Data(Arc<io::Error>),
    /// Bytes changed on the way.
    #[error("{0}; the bytes were damaged on the way, nothing from there on was delivered")]
    Corrupt(&'static str),
    /// The peer broke the rules of the protocol.
    #[error("the other end broke the protocol: {0}")]
    Protocol(&'static str),
}

impl Error {
    /// The stream error inside `error`, if there is one.
    #[must_use]
    pub fn from_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// The kind that the tokio traits report this error as.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind as Kind;
        match self {
            Self::Resolve { source, .. }
            | Self::Connect { source, .. }
            | Self::Listen { source, .. } => source.kind(),
            Self::Handshake { fault, .. } => match fault {
                HandshakeFault::Key => Kind::PermissionDenied,
                HandshakeFault::Timeout(_) => Kind::TimedOut,
                HandshakeFault::Broken(source) => source.kind(),
                HandshakeFault::Transport(_) | HandshakeFault::Version { .. } => Kind::Unsupported,
                _ => Kind::InvalidData,
            },
            Self::Send { fault, .. }
            | Self::Receive { fault, .. }
            | Self::Unconfirmed { fault, .. } => match fault {
                Fault::PeerDied(_) | Fault::Data(_) => Kind::ConnectionReset,
                Fault::PeerSilent(_) => Kind::TimedOut,
                Fault::Corrupt(_) | Fault::Protocol(_) => Kind::InvalidData,
            },
            Self::PeerAborted { .. } | Self::Aborted { .. } => Kind::ConnectionAborted,
            Self::Stopped { .. } => Kind::BrokenPipe,
            Self::Device { .. } => Kind::Unsupported,
            Self::Misuse(_) => Kind::InvalidInput,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}
