//! The sessions of a server that can be ended.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::ssh::agent::served::SessionKill;

/// The sessions that are under way, by the number of the client.
#[derive(Default)]
pub(super) struct SessionKills(Mutex<HashMap<u64, SessionKill>>);

impl SessionKills {
    /// Adds a session that begins. Returns what ends it.
    pub(super) fn add(&self, client: u64) -> SessionKill {
        let kill = SessionKill::default();
        self.lock().insert(client, kill.clone());
        kill
    }

    /// Removes a session that has ended.
    pub(super) fn remove(&self, client: u64) {
        self.lock().remove(&client);
    }

    /// Ends all sessions, and returns how many there were.
    pub(super) fn end_all(&self, reason: &str) -> usize {
        let kills = self.lock();
        for kill in kills.values() {
            kill.end(reason);
        }
        kills.len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, SessionKill>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
