//! The table of the clients' keys, which follows the changes of its file.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fs::Metadata,
    io, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::SystemTime,
};

use super::{
    key_file::{ClientKeysError, FileStamp, key_in_line, read_key_file},
    key_lines::parse,
};
use crate::{
    Error, Key, KeyId, Listener, StreamConfig,
    key::{
        digest::{DIGEST_BYTES, keyed_digest},
        unreadable,
    },
};

/// The keys of the clients, from a file with a line `NAME KEY` for each of them.
///
/// A clone is the same table: all clones see a reload.
#[derive(Clone)]
pub(in crate::cli) struct ClientKeys(Arc<SharedKeys>);

impl ClientKeys {
    /// Reads the table from a file. If others can read the file, the second part of the result is a sentence that warns
    /// about it.
    ///
    /// Blocks: stretching a key that rdpipe did not make takes tens of milliseconds.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, if others can change it, or if a line is wrong.
    pub(in crate::cli) fn load(path: &Path) -> Result<(Self, Option<String>), ClientKeysError> {
        let shared = SharedKeys {
            path: path.to_owned(),
            mark_secret: Key::generate()?.key().clone(),
            table: RwLock::default(),
            reload: Mutex::default(),
        };
        let mut reload = shared.reload();
        reload.stamp = FileStamp::of(&metadata_of(path)?, SystemTime::now());
        let (table, warning) = shared.read(&KeyTable::default())?;
        reload.warning.clone_from(&warning);
        drop(reload);
        shared.replace_table(table);
        Ok((Self(Arc::new(shared)), warning))
    }

    /// Returns the name and the key of the client whose key has this id. Does not block.
    pub(in crate::cli) fn find(&self, id: KeyId) -> Option<(Arc<str>, Key)> {
        let table = self.0.table();
        let client = table.clients.get(&id)?;
        Some((Arc::clone(&client.name), client.key.clone()))
    }

    /// Returns the number of clients.
    pub(in crate::cli) fn count(&self) -> usize {
        self.0.table().clients.len()
    }

    /// Listens on every address of this host, for clients whose keys are in the table.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened.
    pub(in crate::cli) async fn listen(
        &self,
        port: u16,
        config: StreamConfig,
    ) -> Result<Listener, Error> {
        let on = async |address: IpAddr| {
            let keys = self.clone();
            let lookup = move |id| keys.find(id).map(|(_, key)| key);
            Listener::bind_with((address, port), lookup, config.clone()).await
        };
        match on(Ipv6Addr::UNSPECIFIED.into()).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            Err(_) => on(Ipv4Addr::UNSPECIFIED.into()).await,
            listener => listener,
        }
    }

    /// Reads the file again if it has changed since the last call, and returns what is different; `None` if nothing is.
    /// Keys that the table has already are not stretched again. Only a regular file is read again; a pipe is read once.
    ///
    /// Blocks, like [`load`](Self::load). [`find`](Self::find) does not wait for it.
    ///
    /// # Errors
    ///
    /// Fails as [`load`](Self::load) does; the table is then unchanged. A failure that repeats is returned once.
    pub(in crate::cli) fn reload_if_changed(&self) -> Result<Option<KeyChanges>, ClientKeysError> {
        self.reload_at(SystemTime::now())
    }

    fn reload_at(&self, now: SystemTime) -> Result<Option<KeyChanges>, ClientKeysError> {
        let mut reload = self.0.reload();
        match self.0.read_if_changed(&mut reload, now) {
            Ok(None) => Ok(None),
            Ok(Some((table, warning))) => {
                let mut changes = KeyChanges::between(&self.0.table(), &table);
                changes.is_repaired = reload.failure.take().is_some();
                if reload.warning != warning {
                    reload.warning.clone_from(&warning);
                    changes.warning = warning;
                }
                self.0.replace_table(table);
                Ok((!changes.is_empty()).then_some(changes))
            }
            Err(error) => {
                let text = error.to_string();
                let is_repeated = reload.failure.as_ref() == Some(&text);
                reload.failure = Some(text);
                if is_repeated { Ok(None) } else { Err(error) }
            }
        }
    }
}

impl fmt::Debug for ClientKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKeys({} clients)", self.count())
    }
}

/// What a reload has changed, with the names of the clients in alphabetical order. `Display` formats it for the log,
/// without the warning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::cli) struct KeyChanges {
    /// Clients that are new.
    pub(in crate::cli) added: Vec<Arc<str>>,
    /// Clients that were revoked.
    pub(in crate::cli) removed: Vec<Arc<str>>,
    /// Clients that have another key.
    pub(in crate::cli) replaced: Vec<Arc<str>>,
    /// A sentence that warns about the file, if there was none before or another one.
    pub(in crate::cli) warning: Option<String>,
    /// True if the last reload failed.
    pub(in crate::cli) is_repaired: bool,
}

impl KeyChanges {
    /// Returns true if there is nothing to report.
    pub(in crate::cli) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn between(old: &KeyTable, new: &KeyTable) -> Self {
        let (old, new) = (old.ids(), new.ids());
        let mut changes = Self::default();
        for (name, id) in &new {
            match old.get(name) {
                Some(before) if before == id => {}
                Some(_) => changes.replaced.push(Arc::clone(name)),
                None => changes.added.push(Arc::clone(name)),
            }
        }
        let removed = old.into_keys().filter(|name| !new.contains_key(name));
        changes.removed = removed.collect();
        changes
    }
}

impl fmt::Display for KeyChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("added", &self.added),
            ("revoked", &self.removed),
            ("new key for", &self.replaced),
        ];
        let mut separator = "the clients have changed: ";
        for (what, names) in lists {
            if !names.is_empty() {
                write!(f, "{separator}{what} {}", names.join(", "))?;
                separator = "; ";
            }
        }
        if separator != "; " {
            f.write_str("the key file was read again; the clients are the same")?;
        }
        Ok(())
    }
}

/// What the clones of a [`ClientKeys`] share.
struct SharedKeys {
    path: PathBuf,
    /// The secret of the marks in a [`KeyTable`]: random, and in this process only.
    mark_secret: Key,
    /// Locked only while the pointer is copied or exchanged.
    table: RwLock<Arc<KeyTable>>,
    reload: Mutex<ReloadState>,
}

/// What the last attempt to read the file found.
#[derive(Default)]
struct ReloadState {
    /// The file as it was; `None` if it must be read again.
    stamp: Option<FileStamp>,
    /// The error, if the attempt failed.
    failure: Option<String>,
    /// The warning of the last attempt that did not fail.
    warning: Option<String>,
}

impl SharedKeys {
    fn table(&self) -> Arc<KeyTable> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table)
    }

    fn reload(&self) -> MutexGuard<'_, ReloadState> {
        self.reload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges the table. The old one is wiped after the lock has been released.
    fn replace_table(&self, table: KeyTable) {
        let mut new = Arc::new(table);
        let mut current = self.table.write().unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut *current, &mut new);
        drop(current);
    }

    /// Reads the file if it has changed. Returns the table and the warning, or `None` for the same file.
    fn read_if_changed(
        &self,
        reload: &mut ReloadState,
        now: SystemTime,
    ) -> Result<Option<(KeyTable, Option<String>)>, ClientKeysError> {
        // The stamp is older than the text, so a change in between is seen by the next call.
        let last = reload.stamp.take();
        let metadata = metadata_of(&self.path)?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let stamp = FileStamp::of(&metadata, now);
        let is_same = stamp.is_some() && stamp == last;
        reload.stamp = stamp;
        if is_same {
            return Ok(None);
        }
        let read = self.read(&self.table());
        if matches!(read, Err(ClientKeysError::File(_))) {
            // The file may be readable at the next call, without a change of its own.
            reload.stamp = None;
        }
        read.map(Some)
    }

    /// Reads the table and the warning. Takes keys from `old` where they are the same.
    fn read(&self, old: &KeyTable) -> Result<(KeyTable, Option<String>), ClientKeysError> {
        let (text, warning) = read_key_file(&self.path)?;
        let lines = parse(&text).map_err(|error| ClientKeysError::Line {
            path: self.path.clone(),
            error,
        })?;
        let mut table = KeyTable::default();
        for line in lines {
            let mark = keyed_digest(self.mark_secret.secret(), line.key);
            let key = match old.key_with(&mark) {
                Some(key) => key.clone(),
                None => key_in_line(&self.path, line.number, line.key)?,
            };
            table.insert(line.name.into(), key, mark);
        }
        Ok((table, warning))
    }
}

fn metadata_of(path: &Path) -> Result<Metadata, ClientKeysError> {
    Ok(path.metadata().map_err(|source| unreadable(path, source))?)
}

/// The clients of one version of the file.
#[derive(Default)]
struct KeyTable {
    clients: HashMap<KeyId, KnownClient>,
    /// The keys by their marks: the keyed digests of their texts, from which no text can be guessed without the secret. A
    /// key whose text is still in the file need not be stretched again.
    marks: HashMap<[u8; DIGEST_BYTES], KeyId>,
}

/// A client that has a key.
struct KnownClient {
    name: Arc<str>,
    key: Key,
}

impl KeyTable {
    fn insert(&mut self, name: Arc<str>, key: Key, mark: [u8; DIGEST_BYTES]) {
        let id = key.id();
        self.marks.insert(mark, id);
        self.clients.insert(id, KnownClient { name, key });
    }

    /// Returns the key whose text has this mark.
    fn key_with(&self, mark: &[u8; DIGEST_BYTES]) -> Option<&Key> {
        let client = self.clients.get(self.marks.get(mark)?)?;
        Some(&client.key)
    }

    /// Returns the ids of the keys by the names of the clients.
    fn ids(&self) -> BTreeMap<Arc<str>, KeyId> {
        let ids = self.clients.iter();
        ids.map(|(id, client)| (Arc::clone(&client.name), *id))
            .collect()
    }
}

#[cfg(test)]
mod tests;
