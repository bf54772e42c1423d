//! Places that several parties share: each party has a number of its own, and all together have no more than there are.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of one party among those of all parties. Clones are of the same party.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    of_all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

/// A place that is taken. It is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _of_all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Places {
    /// Returns the places of a party: those of `own` that are places of `of_all` too.
    pub(crate) fn new(of_all: Arc<Semaphore>, own: Arc<Semaphore>) -> Self {
        Self { of_all, own }
    }

    /// Takes a place. Returns none if all are taken.
    pub(crate) fn take(&self) -> Option<Place> {
        let own = Arc::clone(&self.own).try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.of_all).try_acquire_owned().ok()?;
        Some(Place {
            _of_all: of_all,
            _own: own,
        })
    }

    /// Waits for a place. Returns none once the semaphores are closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the turn.
    pub(crate) async fn wait(&self) -> Option<Place> {
        let own = Arc::clone(&self.own).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.of_all).acquire_owned().await.ok()?;
        Some(Place {
            _of_all: of_all,
            _own: own,
        })
    }
}
