//! The keys of a listener, and the streams of keys that a part of the program has taken for itself: they do not go to
//! [`Listener::accept`](super::Listener::accept).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, sync::mpsc};

use crate::{Error, Key, StreamConfig, key::KeyId, transport::stream::stream::Stream};

/// Finds the key of a peer by its id.
pub(super) struct ListenerKeys {
    lookup: Box<dyn Fn(KeyId) -> Option<Key> + Send + Sync>,
    /// Verifies the messages of peers whose key is unknown, which takes as long as with a known key, and always fails,
    /// since this key is random and kept here only.
    decoy: Key,
    /// The keys whose streams go somewhere else than to the program.
    routes: Arc<KeyRoutes>,
}

impl ListenerKeys {
    /// The keys that `lookup` returns, and those of `routes`.
    pub(super) fn new(
        lookup: impl Fn(KeyId) -> Option<Key> + Send + Sync + 'static,
        decoy: Key,
        routes: Arc<KeyRoutes>,
    ) -> Self {
        Self {
            lookup: Box::new(lookup),
            decoy,
            routes,
        }
    }

    /// Returns the key with this id, or a key that no peer has.
    pub(super) fn key_or_decoy(&self, id: KeyId) -> Key {
        let routed = self.route(id).map(|route| route.key.clone());
        routed
            .or_else(|| (self.lookup)(id))
            .unwrap_or_else(|| self.decoy.clone())
    }

    /// Returns where the streams of this key go, if they do not go to the program.
    pub(super) fn route(&self, id: KeyId) -> Option<Arc<KeyRoute>> {
        self.routes.find(id)
    }
}

/// The keys that parts of the program expect, by id.
#[derive(Default)]
pub(super) struct KeyRoutes(Mutex<HashMap<KeyId, Arc<KeyRoute>>>);

/// Where the streams of one key go, and how they are set up.
pub(super) struct KeyRoute {
    pub(super) key: Key,
    pub(super) config: StreamConfig,
    /// The runtime that the streams belong to.
    pub(super) runtime: Handle,
    arrivals: mpsc::UnboundedSender<Result<Stream, Error>>,
}

impl KeyRoute {
    /// Passes on a stream, or the reason why a peer with the key gets none.
    pub(super) fn push(&self, outcome: Result<Stream, Error>) {
        // If the acceptor has been dropped, the stream is dropped here, which aborts it.
        let _ = self.arrivals.send(outcome);
    }
}

impl KeyRoutes {
    /// Returns the route of a key.
    pub(super) fn find(&self, id: KeyId) -> Option<Arc<KeyRoute>> {
        self.lock().get(&id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, Arc<KeyRoute>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts the streams of one key on a listener that others use too. Dropping it makes the key unknown again.
#[cfg(feature = "cli")]
pub(crate) struct KeyAcceptor {
    id: KeyId,
    routes: Arc<KeyRoutes>,
    arrivals: mpsc::UnboundedReceiver<Result<Stream, Error>>,
}

#[cfg(feature = "cli")]
impl KeyAcceptor {
    /// Expects streams of `key`, which `config` sets up and which belong to `runtime`. Returns none if the key is
    /// expected already.
    pub(super) fn new(
        routes: &Arc<KeyRoutes>,
        key: Key,
        config: StreamConfig,
        runtime: Handle,
    ) -> Option<Self> {
        let id = key.id();
        let (sender, arrivals) = mpsc::unbounded_channel();
        let route = KeyRoute {
            key,
            config,
            runtime,
            arrivals: sender,
        };
        let mut known = routes.lock();
        if known.contains_key(&id) {
            return None;
        }
        known.insert(id, Arc::new(route));
        drop(known);
        Some(Self {
            id,
            routes: Arc::clone(routes),
            arrivals,
        })
    }

    /// Accepts the next stream. Fails as [`Listener::accept_or_mismatch`](super::Listener::accept_or_mismatch) does.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub(crate) async fn accept(&mut self) -> Result<Stream, Error> {
        match self.arrivals.recv().await {
            Some(outcome) => outcome.map(Stream::granted),
            // The route lives at least as long as this value.
            None => std::future::pending().await,
        }
    }
}

#[cfg(feature = "cli")]
impl Drop for KeyAcceptor {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.id);
    }
}
