//! Counts of what became of the connections of a listener.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Error, HandshakeFault, transport::connect::admission::strangers::PUSHED_OUT};

/// What became of the connections that a [`Listener`](crate::Listener) has accepted so far:
/// [`Listener::stats`](crate::Listener::stats).
///
/// A stream over TCP takes two connections, and counts once, in `streams`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Streams that were made.
    pub streams: u64,
    /// Streams that were made and have not ended.
    pub live: u64,
    /// Peers without a key of this listener.
    pub wrong_keys: u64,
    /// Peers with another version of the protocol.
    pub other_versions: u64,
    /// Connections of other programs, such as port scanners.
    pub foreign: u64,
    /// Peers with the key whose settings exclude those of this listener: the direction, or the transport.
    pub incompatible: u64,
    /// Strangers that were pushed out by newer ones, because there were too many.
    pub pushed_out: u64,
    /// Connections that broke, timed out or broke the protocol before they were a stream.
    pub failed: u64,
    /// Connections that the system could not accept, most often because no descriptor was free.
    pub not_accepted: u64,
}

/// The counts, while they are counted.
#[derive(Default)]
pub(super) struct ListenerCounters {
    streams: AtomicU64,
    wrong_keys: AtomicU64,
    other_versions: AtomicU64,
    foreign: AtomicU64,
    incompatible: AtomicU64,
    pushed_out: AtomicU64,
    failed: AtomicU64,
    not_accepted: AtomicU64,
}

impl ListenerCounters {
    /// Counts a connection that is no stream.
    pub(super) fn count_fault(&self, fault: &HandshakeFault) {
        let counter = match fault {
            HandshakeFault::Key => &self.wrong_keys,
            HandshakeFault::Version { .. } => &self.other_versions,
            HandshakeFault::NotRdpipe(_) => &self.foreign,
            HandshakeFault::Direction(_) | HandshakeFault::Transport(_) => &self.incompatible,
            HandshakeFault::Protocol(text) if *text == PUSHED_OUT => &self.pushed_out,
            _ => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a peer with the key, whose stream was made or not.
    pub(super) fn count_outcome<T>(&self, outcome: &Result<T, Error>) {
        match outcome {
            Ok(_) => _ = self.streams.fetch_add(1, Relaxed),
            Err(Error::Handshake { fault, .. }) => self.count_fault(fault),
            Err(_) => _ = self.failed.fetch_add(1, Relaxed),
        }
    }

    /// Counts a connection that the system could not accept.
    pub(super) fn count_error(&self) {
        self.not_accepted.fetch_add(1, Relaxed);
    }

    /// Returns the counts, with this number of live streams.
    pub(super) fn stats(&self, live: u64) -> ListenerStats {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        ListenerStats {
            streams: of(&self.streams),
            live,
            wrong_keys: of(&self.wrong_keys),
            other_versions: of(&self.other_versions),
            foreign: of(&self.foreign),
            incompatible: of(&self.incompatible),
            pushed_out: of(&self.pushed_out),
            failed: of(&self.failed),
            not_accepted: of(&self.not_accepted),
        }
    }
}
