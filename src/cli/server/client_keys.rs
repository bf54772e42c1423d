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
    key_file::{
        ClientKeysError, FileStamp, LineError, LineFault, key_in_line, parse, read_key_file,
    },
    rights::ClientRights,
};
use crate::{
    Error, Key, KeyId, KnownKeys, Listener, StreamConfig,
    key::{DIGEST_BYTES, MAX_STRETCHED_KEYS, keyed_digest, unreadable},
};

/// The keys of the clients, from a file with a line for each of them.
///
/// A clone is the same table: all clones see a reload.
#[derive(Clone)]
pub(in crate::cli) struct ClientKeys(Arc<SharedKeys>);

impl ClientKeys {
    /// Reads the table from a file. If this user is root and the file belongs to another user, the second part of the
    /// result is a sentence that warns about it.
    ///
    /// Blocks: stretching a key that rdpipe did not make takes tens of milliseconds.
    /// Fails if the file cannot be read, if others can read or change it, or if a line is wrong.
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

    /// Returns the client whose key has this id. Does not block.
    pub(in crate::cli) fn find(&self, id: KeyId) -> Option<KnownClient> {
        self.0.table().clients.get(&id).cloned()
    }

    pub(in crate::cli) fn count(&self) -> usize {
        self.0.table().clients.len()
    }

    /// Listens on every address of this host, for clients whose keys are in the table.
    pub(in crate::cli) async fn listen(
        &self,
        port: u16,
        config: StreamConfig,
    ) -> Result<Listener, Error> {
        let on = async |address: IpAddr| {
            let (keys, stretched, names) = (self.clone(), self.clone(), self.clone());
            let known = KnownKeys::many(move |id| keys.find(id).map(|client| client.key));
            let known = known.and_stretched(move || Arc::clone(&stretched.0.table().stretched));
            let known = known.named(move |id| names.find(id).map(|client| client.name));
            Listener::bind_to((address, port), known, config.clone()).await
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
    pub(in crate::cli) added: Vec<Arc<str>>,
    pub(in crate::cli) removed: Vec<Arc<str>>,
    /// Clients that have another key.
    pub(in crate::cli) replaced: Vec<Arc<str>>,
    /// Clients that have other rights, and the same key.
    pub(in crate::cli) limited: Vec<Arc<str>>,
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
        let (old, new) = (old.by_name(), new.by_name());
        let mut changes = Self::default();
        for (name, (id, rights)) in &new {
            let list = match old.get(name) {
                Some((before, _)) if before != id => &mut changes.replaced,
                Some((_, before)) if before != rights => &mut changes.limited,
                Some(_) => continue,
                None => &mut changes.added,
            };
            list.push(Arc::clone(name));
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
            ("new rights for", &self.limited),
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
        let failed = |error| ClientKeysError::Line {
            path: self.path.clone(),
            error,
        };
        let lines = parse(&text).map_err(failed)?;
        let mut table = KeyTable::default();
        for line in lines {
            let mark = keyed_digest(self.mark_secret.secret(), line.key);
            let key = match old.key_with(&mark) {
                Some(key) => key.clone(),
                None => key_in_line(&self.path, line.number, line.key)?,
            };
            table.check(&key).map_err(|fault| {
                failed(LineError {
                    line: line.number,
                    fault,
                })
            })?;
            let client = KnownClient {
                name: line.name.into(),
                key,
                rights: line.rights,
                number: line.number,
            };
            table.insert(client, mark);
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
    /// The keys by their marks: the keyed digests of their texts, from which no text can be guessed without the secret.
    /// A key whose text is still in the file need not be stretched again.
    marks: HashMap<[u8; DIGEST_BYTES], KeyId>,
    /// The keys that rdpipe did not make: their clients send no id.
    stretched: Arc<Vec<Key>>,
}

/// A client that has a line in the key file.
#[derive(Clone)]
pub(in crate::cli) struct KnownClient {
    /// The name of the client.
    pub(in crate::cli) name: Arc<str>,
    pub(in crate::cli) key: Key,
    pub(in crate::cli) rights: ClientRights,
    /// The number of the line, from 1.
    pub(in crate::cli) number: usize,
}

impl KeyTable {
    fn insert(&mut self, client: KnownClient, mark: [u8; DIGEST_BYTES]) {
        let id = client.key.id();
        self.marks.insert(mark, id);
        if client.key.is_stretched() {
            Arc::make_mut(&mut self.stretched).push(client.key.clone());
        }
        self.clients.insert(id, client);
    }

    /// Checks that a key which rdpipe did not make is no short word, and that there is room for it in the table.
    fn check(&self, key: &Key) -> Result<(), LineFault> {
        if key.is_short() {
            Err(LineFault::ShortKey)
        } else if key.is_stretched() && self.stretched.len() >= MAX_STRETCHED_KEYS {
            Err(LineFault::StretchedKeys)
        } else {
            Ok(())
        }
    }

    fn key_with(&self, mark: &[u8; DIGEST_BYTES]) -> Option<&Key> {
        let client = self.clients.get(self.marks.get(mark)?)?;
        Some(&client.key)
    }

    /// Returns the ids of the keys and the rights, by the names of the clients.
    fn by_name(&self) -> BTreeMap<Arc<str>, (KeyId, &ClientRights)> {
        let clients = self.clients.iter();
        clients
            .map(|(id, client)| (Arc::clone(&client.name), (*id, &client.rights)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, thread, time::Duration};

    use super::*;
    use crate::cli::server::new_key::new_client;

    /// A key that a user chose, and that a server accepts.
    const WORDS: &str = "the_key_of_a_test";

    /// A key file in its own directory.
    struct TestKeyFile(tempfile::TempDir);

    impl TestKeyFile {
        fn new(content: &str) -> Self {
            let file = Self(tempfile::tempdir().unwrap());
            file.replace(content);
            file
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("keys")
        }

        /// Replaces the file by a rename, as a careful editor does.
        fn replace(&self, content: &str) {
            let new = self.0.path().join("new");
            fs::write(&new, content).unwrap();
            set_mode(&new, 0o600);
            fs::rename(new, self.path()).unwrap();
        }

        fn load(&self) -> ClientKeys {
            ClientKeys::load(&self.path()).unwrap().0
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn client(name: &str) -> (String, KeyId) {
        let line = new_client(name).unwrap().server_line;
        let key = line.split_once(' ').unwrap().1;
        (format!("{}\n", *line), Key::parse(key).unwrap().id())
    }

    fn name_of(keys: &ClientKeys, id: KeyId) -> Option<String> {
        let client = keys.find(id)?;
        assert_eq!(client.key.id(), id);
        Some(client.name.to_string())
    }

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn a_client_is_found_by_its_key() {
        let (alice, alice_id) = client("alice");
        let file = TestKeyFile::new(&format!("# clients\n{alice}bob {WORDS}\n"));
        let (keys, warning) = ClientKeys::load(&file.path()).unwrap();
        assert_eq!((keys.count(), warning), (2, None));
        assert_eq!(name_of(&keys, alice_id).as_deref(), Some("alice"));
        let bob = Key::parse(WORDS).unwrap().id();
        assert_eq!(name_of(&keys, bob).as_deref(), Some("bob"));
        assert_eq!(name_of(&keys, client("eve").1), None);
        assert_eq!(format!("{keys:?}"), "ClientKeys(2 clients)");
    }

    #[test]
    fn an_unprotected_file_is_refused() {
        let file = TestKeyFile::new(&client("a").0);
        let path = file.path();
        for (mode, others) in [
            (0o620, "write"),
            (0o602, "write"),
            (0o666, "write"),
            (0o640, "read"),
            (0o604, "read"),
            (0o644, "read"),
        ] {
            set_mode(&path, mode);
            let error = ClientKeys::load(&path).unwrap_err().to_string();
            let expected = format!("is not used: others can {others} it; chmod go= ");
            assert!(error.contains(&expected), "{error}");
        }
        assert!(ClientKeys::load(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_wrong_line_is_an_error_with_file_and_line() {
        let file = TestKeyFile::new(&format!("a {WORDS}\nb rdk1two\n"));
        let error = ClientKeys::load(&file.path()).unwrap_err().to_string();
        let expected = format!(
            "the key file {}, line 2: this looks like a key made by rdpipe, but it is mistyped or cut off",
            file.path().display()
        );
        assert_eq!(error, expected);
        file.replace("a\n");
        let error = ClientKeys::load(&file.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("keys, line 1: no key; write NAME KEY"),
            "{error}"
        );
    }

    #[test]
    fn a_short_word_is_no_key_of_a_client() {
        let (alice, alice_id) = client("alice");
        let file = TestKeyFile::new(&format!("{alice}bob hunter2\n"));
        let error = ClientKeys::load(&file.path()).unwrap_err().to_string();
        let expected = format!(
            "the key file {}, line 2: a key of fewer than 16 characters can be guessed from a recording of the network; \
             replace it with a key that --new-key makes",
            file.path().display()
        );
        assert_eq!(error, expected);
        // A reload leaves the table.
        file.replace(&alice);
        let keys = file.load();
        file.replace("alice hunter2\n");
        assert!(keys.reload_if_changed().is_err());
        assert!(keys.find(alice_id).is_some());
    }

    #[test]
    fn a_server_tries_a_bounded_number_of_stretched_keys() {
        let lines = |count| (0..count).map(|number| format!("c{number} {WORDS}-{number}\n"));
        let (alice, _) = client("alice");
        let text = alice + &lines(MAX_STRETCHED_KEYS).collect::<String>();
        let file = TestKeyFile::new(&text);
        let keys = file.load();
        assert_eq!(keys.count(), MAX_STRETCHED_KEYS + 1);
        assert_eq!(keys.0.table().stretched.len(), MAX_STRETCHED_KEYS);
        file.replace(&lines(MAX_STRETCHED_KEYS + 1).collect::<String>());
        let error = keys.reload_if_changed().unwrap_err().to_string();
        assert!(error.contains("line 17: more than 16 keys"), "{error}");
    }

    #[test]
    fn a_reload_names_what_has_changed() {
        let (alice, alice_id) = client("alice");
        let (bob, bob_id) = client("bob");
        let (carol, carol_id) = client("carol");
        let file = TestKeyFile::new(&format!("{alice}{bob}{carol}"));
        let keys = file.load();
        let clone = keys.clone();
        assert_eq!(keys.reload_if_changed().unwrap(), None);

        let (new_bob, new_bob_id) = client("bob");
        let (dave, dave_id) = client("dave");
        file.replace(&format!("{dave}\n{new_bob}\n{carol}"));
        let changes = clone.reload_if_changed().unwrap().unwrap();
        assert_eq!(changes.added, names(&["dave"]));
        assert_eq!(changes.removed, names(&["alice"]));
        assert_eq!(changes.replaced, names(&["bob"]));
        assert_eq!(
            changes.to_string(),
            "the clients have changed: added dave; revoked alice; new key for bob"
        );
        assert_eq!(keys.reload_if_changed().unwrap(), None);
        let found = [alice_id, bob_id, carol_id, new_bob_id, dave_id].map(|id| name_of(&keys, id));
        assert_eq!(
            found.each_ref().map(Option::as_deref),
            [None, None, Some("carol"), Some("bob"), Some("dave")]
        );
    }

    #[test]
    fn a_reload_brings_other_rights() {
        let (alice, alice_id) = client("alice");
        let file = TestKeyFile::new(&alice);
        let keys = file.load();
        assert!(keys.find(alice_id).unwrap().rights == ClientRights::ALL);
        file.replace(&format!("# clients\n{} append /run\n", alice.trim()));
        let changes = keys.reload_if_changed().unwrap().unwrap();
        assert_eq!(
            changes.to_string(),
            "the clients have changed: new rights for alice"
        );
        let found = keys.find(alice_id).unwrap();
        assert!(found.rights == ClientRights::parse(b"append /run").unwrap());
        assert_eq!(found.number, 2);
    }

    #[test]
    fn a_broken_file_leaves_the_table_and_is_reported_once() {
        let (alice, alice_id) = client("alice");
        let file = TestKeyFile::new(&alice);
        let keys = file.load();
        file.replace("alice\n");
        assert!(keys.reload_if_changed().is_err());
        assert_eq!(keys.reload_if_changed().unwrap(), None);
        file.replace("alice rdk1x\n");
        assert!(keys.reload_if_changed().is_err());
        fs::remove_file(file.path()).unwrap();
        assert!(keys.reload_if_changed().is_err());
        assert_eq!(keys.reload_if_changed().unwrap(), None);
        assert_eq!(name_of(&keys, alice_id).as_deref(), Some("alice"));

        file.replace(&alice);
        set_mode(&file.path(), 0o666);
        assert!(keys.reload_if_changed().is_err());
        set_mode(&file.path(), 0o600);
        let changes = keys.reload_if_changed().unwrap().unwrap();
        assert!(changes.is_repaired);
        assert_eq!(
            changes.to_string(),
            "the key file was read again; the clients are the same"
        );
        assert_eq!(keys.reload_if_changed().unwrap(), None);
    }

    /// The test plants another key under the mark of the line's text: a reload that stretched the text would not return
    /// it.
    #[test]
    fn an_unchanged_key_is_not_stretched_again() {
        let file = TestKeyFile::new(&format!("alice {WORDS}\n"));
        let keys = file.load();
        let mark = keyed_digest(keys.0.mark_secret.secret(), WORDS.as_bytes());
        assert!(keys.0.table().key_with(&mark).is_some());
        let planted = Key::generate().unwrap();
        let mut table = KeyTable::default();
        let client = KnownClient {
            name: "alice".into(),
            key: planted.key().clone(),
            rights: ClientRights::ALL,
            number: 1,
        };
        table.insert(client, mark);
        keys.0.replace_table(table);
        file.replace(&format!("alicia {WORDS}\n"));
        let changes = keys.reload_if_changed().unwrap().unwrap();
        assert_eq!(changes.added, names(&["alicia"]));
        assert_eq!(name_of(&keys, planted.id()).as_deref(), Some("alicia"));
    }

    #[test]
    fn a_change_right_after_the_load_is_seen() {
        let file = TestKeyFile::new(&format!("a {WORDS}\n"));
        let keys = file.load();
        // Same inode, same size, and most often the same time.
        fs::write(file.path(), format!("b {WORDS}\n")).unwrap();
        let changes = keys.reload_if_changed().unwrap().unwrap();
        assert_eq!(
            (changes.added, changes.removed),
            (names(&["b"]), names(&["a"]))
        );
    }

    /// The test empties the table: a call that read the file would fill it.
    #[test]
    fn a_file_that_has_not_changed_is_not_read() {
        let file = TestKeyFile::new(&format!("a {WORDS}\n"));
        let keys = file.load();
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(keys.reload_at(later).unwrap(), None);
        keys.0.replace_table(KeyTable::default());
        assert_eq!(keys.reload_at(later).unwrap(), None);
        assert_eq!(keys.count(), 0);
        file.replace(&format!("a {WORDS}\n"));
        let changes = keys.reload_at(later).unwrap().unwrap();
        assert_eq!(changes.added, names(&["a"]));

        file.replace("a\n");
        assert!(keys.reload_at(later).is_err());
        assert_eq!(keys.reload_at(later).unwrap(), None);
        fs::remove_file(file.path()).unwrap();
        assert!(keys.reload_at(later).is_err());
        file.replace(&format!("a {WORDS}\n"));
        assert!(keys.reload_at(later).unwrap().unwrap().is_repaired);
    }

    #[test]
    fn only_a_regular_file_is_read_again() {
        let file = TestKeyFile::new(&format!("a {WORDS}\n"));
        let keys = file.load();
        fs::remove_file(file.path()).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            file.path(),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert_eq!(keys.reload_if_changed().unwrap(), None);
        assert_eq!(keys.count(), 1);
    }

    #[test]
    fn a_file_without_clients_revokes_all() {
        let (alice, alice_id) = client("alice");
        let file = TestKeyFile::new(&alice);
        let keys = file.load();
        file.replace("# none\n");
        assert_eq!(
            keys.reload_if_changed().unwrap().unwrap().removed,
            names(&["alice"])
        );
        assert_eq!((keys.count(), name_of(&keys, alice_id)), (0, None));
    }

    #[test]
    fn a_lookup_may_run_beside_reloads() {
        let (alice, alice_id) = client("alice");
        let file = TestKeyFile::new(&alice);
        let keys = file.load();
        thread::scope(|scope| {
            let finder = scope.spawn(|| (0..10_000).all(|_| keys.find(alice_id).is_some()));
            for round in 0..20 {
                file.replace(&format!("{alice}{}", client(&format!("c{round}")).0));
                keys.reload_if_changed().unwrap().unwrap();
            }
            assert!(finder.join().unwrap());
        });
    }
}
