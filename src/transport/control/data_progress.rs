//! How far the data path of a stream has got.
//!
//! Each ping says how many bytes its sender has sent on the data path, and how many it has received. So an end knows of
//! bytes that are on their way to it. If none of them arrives for a long time, although the control connection works, the
//! data path is dead.
//!
//! | data path | `sent` | `received` |
//! |---|---|---|
//! | TCP | bytes that the socket has accepted, headers included | bytes that were read from the socket |
//! | RDMA | the offset up to which writes have completed | the offset up to which frames have arrived |
//!
//! The receiving end judges: only it can distinguish bytes that have not arrived from bytes that it has not read. The
//! [watch](super::data_watch) only detects that the counts stand still; the [data path](StalledPath) says whether that is a fault.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::message::Message;
use crate::Fault;

/// The counts of both ends. The lanes store the counts of this end, and pings bring those of the peer.
#[derive(Default)]
pub(crate) struct DataProgress {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    peer_sent: AtomicU64,
    pub(super) peer_received: AtomicU64,
    path: OnceLock<Box<dyn StalledPath>>,
}

/// A data path whose counts stand still.
pub(crate) trait StalledPath: Send + Sync {
    /// Handles a stall: returns `Ok` if the bytes have arrived and only were not read, or if the data path repairs itself.
    ///
    /// # Errors
    ///
    /// The fault that ends the stream.
    fn stalled(&self, stall: Stall) -> Result<(), Fault>;
}

/// Counts of the data path that stand still. Displayed, a stall is the reason why the data connection counts as broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stall {
    /// The peer has sent more than has arrived here.
    #[error("none of the {bytes} bytes that were sent on it arrived for {silence:.1?}")]
    Arrivals {
        /// The number of bytes that are missing.
        bytes: u64,
        /// The time for which none has arrived.
        silence: Duration,
    },
    /// The peer has received more than this end knows to be delivered.
    #[error(
        "this end's device has not completed the writes of {bytes} bytes for {silence:.1?}, and they have arrived"
    )]
    Completions {
        /// The number of bytes whose writes have not completed.
        bytes: u64,
        /// The time for which none has completed.
        silence: Duration,
    },
}

impl From<Stall> for io::Error {
    fn from(stall: Stall) -> Self {
        Self::new(io::ErrorKind::TimedOut, stall)
    }
}

impl From<Stall> for Fault {
    fn from(stall: Stall) -> Self {
        Self::Data(Arc::new(stall.into()))
    }
}

impl DataProgress {
    /// Records that `bytes` in all have been sent.
    pub(crate) fn set_sent(&self, bytes: u64) {
        self.sent.store(bytes, Relaxed);
    }

    /// Records that `bytes` in all have been received.
    pub(crate) fn set_received(&self, bytes: u64) {
        self.received.store(bytes, Relaxed);
    }

    /// Sets the data path that handles stalls, once.
    pub(crate) fn set_path(&self, path: impl StalledPath + 'static) {
        let _ = self.path.set(Box::new(path));
    }

    /// Returns the data path, if it has been set.
    pub(super) fn path(&self) -> Option<&dyn StalledPath> {
        self.path.get().map(Box::as_ref)
    }

    /// Returns how many bytes the peer has sent, and how many of them have arrived.
    pub(super) fn arrivals(&self) -> (u64, u64) {
        (self.peer_sent.load(Relaxed), self.received.load(Relaxed))
    }

    /// Returns how many bytes the peer has received, and how many this end knows to be delivered.
    pub(super) fn completions(&self) -> (u64, u64) {
        (self.peer_received.load(Relaxed), self.sent.load(Relaxed))
    }

    /// Records the counts of the peer.
    pub(super) fn set_peer(&self, sent: u64, received: u64) {
        self.peer_sent.store(sent, Relaxed);
        self.peer_received.store(received, Relaxed);
    }

    /// Returns a ping with the counts of this end.
    pub(super) fn ping(&self) -> Message {
        Message::Ping {
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
        }
    }
}
