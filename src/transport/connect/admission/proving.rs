//! The connections whose first message verified, and which have not shown yet that they can go on: the first message
//! may be a recording, whose sender does not know the session keys.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::control::noise::HANDSHAKE_BYTES;

/// The places of the connections of one listener that are proving that they have the key.
pub(crate) struct Proving {
    places: Arc<Semaphore>,
    /// The first messages of these connections. A peer makes a new one for each connection, so one that comes twice is a
    /// recording, and a recording takes one place at most.
    messages: Mutex<HashSet<[u8; HANDSHAKE_BYTES]>>,
}

impl Proving {
    /// Keeps at most `most` connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(most)),
            messages: Mutex::default(),
        })
    }

    /// Returns a future that waits for a place for the connection with this first message; `None` if another connection
    /// with the same message has a place or waits for one.
    pub(crate) fn enter(
        self: &Arc<Self>,
        message: [u8; HANDSHAKE_BYTES],
    ) -> Option<impl Future<Output = ProvingPlace> + use<>> {
        let is_new = self.lock().insert(message);
        let message = is_new.then(|| UniqueMessage {
            proving: Arc::clone(self),
            message,
        })?;
        let place = Arc::clone(&self.places).acquire_owned();
        Some(async move {
            ProvingPlace {
                _message: message,
                _permit: place.await.expect("the semaphore is never closed"),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<[u8; HANDSHAKE_BYTES]>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection, which ends when it is dropped.
pub(crate) struct ProvingPlace {
    _message: UniqueMessage,
    _permit: OwnedSemaphorePermit,
}

/// A first message that no other connection may show, until it is dropped.
struct UniqueMessage {
    proving: Arc<Proving>,
    message: [u8; HANDSHAKE_BYTES],
}

impl Drop for UniqueMessage {
    fn drop(&mut self) {
        self.proving.lock().remove(&self.message);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_recording_takes_one_place() {
        let proving = Proving::new(2);
        let first = proving.enter([1; HANDSHAKE_BYTES]).unwrap().now_or_never();
        assert!(proving.enter([1; HANDSHAKE_BYTES]).is_none());
        let second = proving.enter([2; HANDSHAKE_BYTES]).unwrap().now_or_never();
        assert!(first.is_some() && second.is_some());
        drop(first);
        assert!(proving.enter([1; HANDSHAKE_BYTES]).is_some());
    }

    #[test]
    fn one_too_many_waits() {
        let proving = Proving::new(1);
        let first = proving.enter([1; HANDSHAKE_BYTES]).unwrap().now_or_never();
        let mut second = Box::pin(proving.enter([2; HANDSHAKE_BYTES]).unwrap());
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
        assert!(proving.lock().is_empty());
    }
}
