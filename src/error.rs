//! The errors of streams. Each message names what failed, where, and at which byte.

use std::{io, sync::Arc, time::Duration};

/// The error of a stream, by the operation that failed.
///
/// The type implements `Clone`, because both halves of a stream report the same failure. The tokio traits return it
/// inside an [`io::Error`]; [`Error::from_io`] finds it there.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host name has no address.
    #[error("cannot find host {host}: {source}")]
    Resolve {
        /// The host name that was given.
        host: String,
        /// The error of the resolver.
        source: Arc<io::Error>,
    },
    /// No address of the peer accepted a connection in time.
    #[error(
        "cannot connect to {peer}: {source} (tried for {tried:.1?}; is the receiver running, and is the port open?)"
    )]
    Connect {
        /// The host and port that were given.
        peer: String,
        /// The time for which connecting was tried.
        tried: Duration,
        /// The error of the last attempt.
        source: Arc<io::Error>,
    },
    /// The listening socket could not be opened.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address and port.
        address: String,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// RDMA, or the device that the configuration names, cannot be used on this host.
    #[error("{reason}")]
    Device {
        /// The kind of obstacle.
        fault: DeviceFault,
        /// The reason, in words.
        reason: String,
    },
    /// The handshake of the two ends failed.
    #[error("{peer}: {fault}")]
    Handshake {
        /// The peer, by name or address.
        peer: String,
        /// The reason why the handshake failed.
        fault: HandshakeFault,
    },
    /// Sending failed: the peer may not have received all bytes that were written on this end.
    #[error("sending to {peer} failed at byte {offset}: {fault}")]
    Send {
        /// The peer, by name or address.
        peer: String,
        /// The number of bytes of this direction that were handed to the data path before the failure.
        offset: u64,
        /// The cause.
        fault: Fault,
    },
    /// Receiving failed before the peer's end of file.
    #[error("receiving from {peer} failed at byte {offset}: {fault}")]
    Receive {
        /// The peer, by name or address.
        peer: String,
        /// The number of bytes of this direction that arrived and were verified before the failure.
        offset: u64,
        /// The cause.
        fault: Fault,
    },
    /// All bytes were sent, but the confirmation of the peer did not arrive. The peer may have taken them or not.
    #[error("delivery to {peer} is unconfirmed: all {bytes} bytes were sent, then {fault}")]
    Unconfirmed {
        /// The peer, by name or address.
        peer: String,
        /// The number of bytes of this direction.
        bytes: u64,
        /// The failure that came instead of the confirmation.
        fault: Fault,
    },
    /// The peer aborted the stream and sent a reason.
    #[error("{peer} gave up at byte {offset}: {reason}")]
    PeerAborted {
        /// The peer, by name or address.
        peer: String,
        /// The peer's position in the stream, in bytes.
        offset: u64,
        /// The reason, as the peer sent it.
        reason: String,
    },
    /// The peer's reader needs no more bytes and called [`stop`](crate::Stream::stop). This is not a failure of the
    /// stream.
    #[error("{peer} stopped reading after byte {offset}")]
    Stopped {
        /// The peer, by name or address.
        peer: String,
        /// The number of bytes that the peer's reader had taken.
        offset: u64,
    },
    /// This end has called [`abort`](crate::Stream::abort) before.
    #[error("the stream was aborted here: {reason}")]
    Aborted {
        /// The reason that was given to `abort`.
        reason: String,
    },
    /// The call is not allowed: a write after a shutdown, or a read or write against the stream's direction.
    #[error("{0}")]
    Misuse(&'static str),
}

/// The misuse for which sockets have an error of their own, `EPIPE`.
pub(crate) const WRITTEN_AFTER_SHUTDOWN: &str = "written after shutdown";

/// The reason why this host cannot use RDMA, or cannot use the device that the configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceFault {
    /// This host lacks the device, port, GID or partition key that [`RdmaConfig`](crate::RdmaConfig) names.
    Choice,
    /// This host has no RDMA device, or none that it can use now.
    Unusable,
    /// The memlock limit is too low for the smallest pool.
    Memlock,
    /// The library was built without the feature `rdma`.
    NotBuilt,
}

/// The reason why a handshake failed.
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
    /// The program at the other end is not rdpipe.
    #[error("the program at the other end is not rdpipe ({0}); check host and port")]
    NotRdpipe(&'static str),
    /// Both ends only send, or both only receive.
    #[error("both ends are set to {0}; one must send and the other receive")]
    Direction(&'static str),
    /// RDMA is not possible, and the configuration of one end does not allow TCP. Holds the reason why RDMA is not
    /// possible.
    #[error("no RDMA, and one end does not allow TCP: {0}")]
    Transport(String),
    /// One end encrypts the data, and the other one does not: see [`Encryption`](crate::Encryption). Holds what each of
    /// them has chosen.
    #[error("the hosts do not agree on encryption: {0}")]
    Encryption(String),
    /// The peer did not answer within this time.
    #[error("no answer within {0:.1?} during the handshake")]
    Timeout(Duration),
    /// The connection ended during the handshake.
    #[error("the connection broke during the handshake ({0})")]
    Broken(Arc<io::Error>),
    /// A handshake message is malformed, or arrived at a time when the protocol does not allow it.
    #[error("a handshake message is invalid: {0}")]
    Protocol(&'static str),
    /// The peer refused the stream, for the reason that it sent.
    #[error("refused: {0}")]
    Refused(String),
}

/// The failure that ended an open stream.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer's process died: its control connection ended without the closing message.
    #[error("the other end died ({0})")]
    PeerDied(Arc<io::Error>),
    /// Nothing arrived from the peer for this time, not even a keepalive.
    #[error("received nothing from the other end for {0:.1?} (host down or cable out)")]
    PeerSilent(Duration),
    /// The data connection failed.
    #[error("the data connection broke ({0})")]
    Data(Arc<io::Error>),
    /// Bytes were damaged on the way, or changed there by an attacker.
    #[error(
        "{0}; the bytes were damaged or changed on the way, and no byte from there on was delivered"
    )]
    Corrupt(&'static str),
    /// The peer violated the protocol.
    #[error("the other end broke the protocol: {0}")]
    Protocol(&'static str),
    /// The task of the control connection ended before the stream did: its runtime was shut down, or it panicked.
    #[error(
        "the task of the control connection ended here (its runtime was shut down, or it panicked)"
    )]
    ControlTask,
}

impl Error {
    /// Returns the stream error inside `error`, or `None` if there is none.
    #[must_use]
    pub fn from_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns the [`io::ErrorKind`] with which the tokio traits report this error.
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
                Fault::ControlTask => Kind::Other,
            },
            Self::PeerAborted { .. } | Self::Aborted { .. } => Kind::ConnectionAborted,
            Self::Device { .. } => Kind::Unsupported,
            Self::Stopped { .. } | Self::Misuse(WRITTEN_AFTER_SHUTDOWN) => Kind::BrokenPipe,
            Self::Misuse(_) => Kind::InvalidInput,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_after_shutdown_is_a_broken_pipe() {
        let kind = |what| io::Error::from(Error::Misuse(what)).kind();
        assert_eq!(kind(WRITTEN_AFTER_SHUTDOWN), io::ErrorKind::BrokenPipe);
        assert_eq!(
            kind("this stream only receives"),
            io::ErrorKind::InvalidInput
        );
    }
}
