use std::{fs, os::unix::fs::PermissionsExt, thread, time::Duration};

use super::*;
use crate::cli::keys::key_lines::new_client_line;

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

/// A line of a new client, and the id of its key.
fn client(name: &str) -> (String, KeyId) {
    let line = new_client_line(name).unwrap();
    let key = line.split_once(' ').unwrap().1;
    (format!("{}\n", *line), Key::parse(key).unwrap().id())
}

fn name_of(keys: &ClientKeys, id: KeyId) -> Option<String> {
    let (name, key) = keys.find(id)?;
    assert_eq!(key.id(), id);
    Some(name.to_string())
}

fn names(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[test]
fn a_client_is_found_by_its_key() {
    let (alice, alice_id) = client("alice");
    let file = TestKeyFile::new(&format!("# clients\n{alice}bob secret_key\n"));
    let (keys, warning) = ClientKeys::load(&file.path()).unwrap();
    assert_eq!((keys.count(), warning), (2, None));
    assert_eq!(name_of(&keys, alice_id).as_deref(), Some("alice"));
    let bob = Key::parse("secret_key").unwrap().id();
    assert_eq!(name_of(&keys, bob).as_deref(), Some("bob"));
    assert_eq!(name_of(&keys, client("eve").1), None);
    assert_eq!(format!("{keys:?}"), "ClientKeys(2 clients)");
}

#[test]
fn an_unprotected_file_is_refused_or_gives_a_warning() {
    let file = TestKeyFile::new(&client("a").0);
    let path = file.path();
    for mode in [0o620, 0o602, 0o666] {
        set_mode(&path, mode);
        let error = ClientKeys::load(&path).unwrap_err().to_string();
        assert!(error.contains("others can write it"), "{error}");
    }
    set_mode(&path, 0o640);
    let (keys, warning) = ClientKeys::load(&path).unwrap();
    assert!(warning.unwrap().contains("others can read the key file"));
    // The same warning is reported once.
    assert_eq!(keys.reload_if_changed().unwrap(), None);
    assert!(ClientKeys::load(Path::new("/nonexistent")).is_err());
}

#[test]
fn a_wrong_line_is_an_error_with_file_and_line() {
    let file = TestKeyFile::new("a one\nb rdk1two\n");
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

/// The test plants another key under the mark of the line's text: a reload that stretched the text would not return it.
#[test]
fn an_unchanged_key_is_not_stretched_again() {
    let file = TestKeyFile::new("alice secret_key\n");
    let keys = file.load();
    let mark = keyed_digest(keys.0.mark_secret.secret(), b"secret_key");
    assert!(keys.0.table().key_with(&mark).is_some());
    let planted = Key::generate().unwrap();
    let mut table = KeyTable::default();
    table.insert("alice".into(), planted.key().clone(), mark);
    keys.0.replace_table(table);
    file.replace("alicia secret_key\n");
    let changes = keys.reload_if_changed().unwrap().unwrap();
    assert_eq!(changes.added, names(&["alicia"]));
    assert_eq!(name_of(&keys, planted.id()).as_deref(), Some("alicia"));
}

#[test]
fn a_change_right_after_the_load_is_seen() {
    let file = TestKeyFile::new("a 1\n");
    let keys = file.load();
    // Same inode, same size, and most often the same time.
    fs::write(file.path(), "b 1\n").unwrap();
    let changes = keys.reload_if_changed().unwrap().unwrap();
    assert_eq!(
        (changes.added, changes.removed),
        (names(&["b"]), names(&["a"]))
    );
}

/// The test empties the table: a call that read the file would fill it.
#[test]
fn a_file_that_has_not_changed_is_not_read() {
    let file = TestKeyFile::new("a 1\n");
    let keys = file.load();
    let later = SystemTime::now() + Duration::from_secs(60);
    assert_eq!(keys.reload_at(later).unwrap(), None);
    keys.0.replace_table(KeyTable::default());
    assert_eq!(keys.reload_at(later).unwrap(), None);
    assert_eq!(keys.count(), 0);
    file.replace("a 1\n");
    let changes = keys.reload_at(later).unwrap().unwrap();
    assert_eq!(changes.added, names(&["a"]));

    file.replace("a\n");
    assert!(keys.reload_at(later).is_err());
    assert_eq!(keys.reload_at(later).unwrap(), None);
    fs::remove_file(file.path()).unwrap();
    assert!(keys.reload_at(later).is_err());
    file.replace("a 1\n");
    assert!(keys.reload_at(later).unwrap().unwrap().is_repaired);
}

#[test]
fn only_a_regular_file_is_read_again() {
    let file = TestKeyFile::new("a 1\n");
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
