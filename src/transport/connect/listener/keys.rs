//! The keys of a listener.

use std::sync::Arc;

use super::key_acceptor::{KeyRoute, KeyRoutes};
use crate::{Key, key::KeyId};

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
