//! The keys of a listener.

use crate::{Key, key::KeyId};

/// Finds the key of a peer by its id.
pub(super) struct ListenerKeys {
    lookup: Box<dyn Fn(KeyId) -> Option<Key> + Send + Sync>,
    /// Verifies the messages of peers whose key is unknown, which takes as long as with a known key, and always fails,
    /// since this key is random and kept here only.
    decoy: Key,
}

impl ListenerKeys {
    /// The keys that `lookup` returns.
    pub(super) fn new(
        lookup: impl Fn(KeyId) -> Option<Key> + Send + Sync + 'static,
        decoy: Key,
    ) -> Self {
        Self {
            lookup: Box::new(lookup),
            decoy,
        }
    }

    /// Returns the key with this id, or a key that no peer has.
    pub(super) fn key_or_decoy(&self, id: KeyId) -> Key {
        (self.lookup)(id).unwrap_or_else(|| self.decoy.clone())
    }
}
