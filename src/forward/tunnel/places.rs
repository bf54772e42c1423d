//! How many connections an end opens for its peer at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places for connections that one peer has, among those of all peers.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionPlaces {
    of_all: Arc<Semaphore>,
    of_peer: Arc<Semaphore>,
}

/// The place of one connection, free again when it is dropped.
#[derive(Debug)]
pub(super) struct TakenPlace {
    _of_all: OwnedSemaphorePermit,
    _of_peer: OwnedSemaphorePermit,
}

impl ConnectionPlaces {
    /// Returns the places of a peer: those of `of_peer` that are places of `of_all` too.
    pub(crate) fn new(of_all: Arc<Semaphore>, of_peer: Arc<Semaphore>) -> Self {
        Self { of_all, of_peer }
    }

    /// Takes a place; none if all are taken.
    pub(super) fn take(&self) -> Option<TakenPlace> {
        let of_peer = Arc::clone(&self.of_peer).try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.of_all).try_acquire_owned().ok()?;
        Some(TakenPlace {
            _of_all: of_all,
            _of_peer: of_peer,
        })
    }
}
