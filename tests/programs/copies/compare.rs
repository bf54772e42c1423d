//! Comparisons of two trees: by rsync, and by a walk of the tests' own, since neither shows everything.
#![allow(
    clippy::unnecessary_debug_formatting,
    reason = "names in these trees have control characters"
)]

use std::{
    collections::BTreeMap,
    ffi::{CStr, OsString},
    fs::{self, File, Metadata},
    io::Read,
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use rdpipe_digest::xxh3_64_with_seed;
use rustix::{
    fs::{SeekFrom, lgetxattr, llistxattr, seek},
    io::Errno,
};

/// Checks that the tree `copy` is the tree `original`, with all metadata.
#[track_caller]
pub(crate) fn assert_same(original: &Path, copy: &Path) {
    assert_rsync_finds_nothing(original, copy);
    let (expected, found) = (Tree::read(original), Tree::read(copy));
    if let Some(difference) = difference(&expected, &found, Entry::clone) {
        panic!("{difference}");
    }
    let loose = expected.0.iter().filter(|(path, entry)| {
        let allocated = found.0.get(*path).map_or(0, |copy| copy.allocated);
        allocated > entry.allocated + entry.allocated / 8 + (256 << 10)
    });
    let loose: Vec<_> = loose.map(|(path, _)| path).collect();
    assert!(loose.is_empty(), "these lost their holes: {loose:?}");
}

/// Returns where two trees differ in the kinds, the contents and the permission bits, which `cp -r` copies.
pub(crate) fn difference_of_contents(original: &Path, copy: &Path) -> Option<String> {
    let plain = |entry: &Entry| Entry {
        owners: (0, 0),
        modified: (0, 0),
        first_name: None,
        attributes: BTreeMap::new(),
        ..entry.clone()
    };
    difference(&Tree::read(original), &Tree::read(copy), plain)
}

/// Checks that every file of a copy that was cut has either a temporary name or the whole contents of its original.
/// Returns the temporary names.
#[track_caller]
pub(crate) fn assert_no_partial_file(original: &Path, copy: &Path) -> Vec<PathBuf> {
    if !copy.exists() {
        return Vec::new();
    }
    let (expected, found) = (Tree::read(original), Tree::read(copy));
    let mut temporary = Vec::new();
    for (path, entry) in found.0 {
        if is_temporary(&path) {
            temporary.push(path);
            continue;
        }
        let original = expected.0.get(&path);
        let original = original.unwrap_or_else(|| panic!("{path:?} is of no source"));
        let contents = |entry: &Entry| (entry.kind, entry.size, entry.content.clone());
        assert_eq!(contents(&entry), contents(original), "{path:?} is partial");
    }
    temporary
}

/// Returns true for a name that rdcp gives to what is not complete.
pub(crate) fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = [".rdcp-part", ".rdcp-map"];
    name.starts_with(".rdcp-")
        || (name.starts_with('.') && ends.iter().any(|end| name.ends_with(end)))
}

/// Checks that rsync, asked for everything that it can keep, has nothing to do.
#[track_caller]
pub(crate) fn assert_rsync_finds_nothing(original: &Path, copy: &Path) {
    let mut rsync = Command::new("rsync");
    // Without a window, nanoseconds count too.
    rsync.args(["-aHAXSnci", "--delete", "--numeric-ids"]);
    rsync.arg("--modify-window=-1");
    // A slash means the contents of a directory.
    let operands = [original, copy].map(|path| {
        if path.is_dir() {
            path.join("")
        } else {
            path.to_owned()
        }
    });
    let output = rsync.args(operands).output();
    let output = output.expect("rsync, which scripts/setup installs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rsync: {said}");
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(found.is_empty(), "rsync would still do this:\n{found}");
}

/// The entries of a tree, by their paths below its top; the top has the empty path.
#[derive(Debug)]
pub(crate) struct Tree(pub(crate) BTreeMap<PathBuf, Entry>);

/// What a tree has at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: &'static str,
    pub(crate) mode: u32,
    pub(crate) owners: (u32, u32),
    pub(crate) modified: (i64, i64),
    pub(crate) device: u64,
    pub(crate) size: u64,
    /// The digest of a file, or the target of a link.
    pub(crate) content: OsString,
    /// The first path in the tree that names the same file, if there is an earlier one.
    pub(crate) first_name: Option<PathBuf>,
    pub(crate) attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The bytes that the file takes on the disk.
    pub(crate) allocated: u64,
}

impl Tree {
    pub(crate) fn read(top: &Path) -> Self {
        let mut tree = Self(BTreeMap::new());
        let mut first_names = BTreeMap::new();
        tree.add(top, PathBuf::new(), &mut first_names);
        tree
    }

    fn add(&mut self, top: &Path, path: PathBuf, first_names: &mut BTreeMap<(u64, u64), PathBuf>) {
        // A path that ends in a slash would follow a link.
        let at = if path.as_os_str().is_empty() {
            top.to_owned()
        } else {
            top.join(&path)
        };
        let info = fs::symlink_metadata(&at);
        let info = info.unwrap_or_else(|error| panic!("{}: {error}", at.display()));
        if info.is_dir() {
            let entries = fs::read_dir(&at).expect("a directory");
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            for name in names {
                self.add(top, path.join(name), first_names);
            }
        }
        let mut entry = Entry::read(&at, &info);
        if !info.is_dir() && info.nlink() > 1 {
            let file = (info.dev(), info.ino());
            entry.first_name = first_names.get(&file).cloned();
            first_names.entry(file).or_insert_with(|| path.clone());
        }
        self.0.insert(path, entry);
    }
}

impl Entry {
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == "directory"
    }

    /// Returns true if two entries have the same kind and contents, whatever their metadata are.
    pub(crate) fn has_contents_of(&self, other: &Self) -> bool {
        let contents = |entry: &Self| (entry.kind, entry.size, entry.device, entry.content.clone());
        contents(self) == contents(other)
    }

    fn read(at: &Path, info: &Metadata) -> Self {
        let kind = info.file_type();
        let kinds = [
            (kind.is_dir(), "directory"),
            (kind.is_file(), "file"),
            (kind.is_symlink(), "link"),
            (kind.is_fifo(), "FIFO"),
            (kind.is_socket(), "socket"),
            (kind.is_char_device(), "character device"),
            (kind.is_block_device(), "block device"),
        ];
        let content = match () {
            () if kind.is_file() => format!("{:016x}", digest(at)).into(),
            () if kind.is_symlink() => fs::read_link(at).expect("a link").into(),
            () => OsString::new(),
        };
        Self {
            kind: kinds.iter().find(|(is, _)| *is).expect("a kind").1,
            mode: info.mode() & 0o7777,
            owners: (info.uid(), info.gid()),
            modified: (info.mtime(), info.mtime_nsec()),
            device: info.rdev(),
            size: if kind.is_file() { info.size() } else { 0 },
            content,
            first_name: None,
            attributes: attributes(at),
            allocated: if kind.is_file() {
                info.blocks() * 512
            } else {
                0
            },
        }
    }
}

/// Returns the paths at which two trees differ, in what `seen` leaves of an entry.
fn difference(expected: &Tree, found: &Tree, seen: impl Fn(&Entry) -> Entry) -> Option<String> {
    let of = |tree: &Tree, path: &PathBuf| {
        let entry = tree.0.get(path).map(&seen);
        entry.map(|entry| Entry {
            allocated: 0,
            ..entry
        })
    };
    let mut paths: Vec<_> = expected.0.keys().chain(found.0.keys()).collect();
    paths.sort();
    paths.dedup();
    paths.retain(|path| of(expected, path) != of(found, path));
    let all = paths.len();
    let list = paths
        .into_iter()
        .take(10)
        .fold(String::new(), |list, path| {
            let (expected, found) = (of(expected, path), of(found, path));
            format!("{list}{path:?}:\n  expected {expected:?}\n  found    {found:?}\n")
        });
    (all > 0).then(|| format!("{all} differences; the first ones:\n{list}"))
}

/// The bytes of which a file system makes files. Blocks of zeros are not digested, because a hole has the same content.
const BLOCK: u64 = 4096;

/// Returns a digest of the data of a file and of the offsets at which it stands. Holes are not read.
fn digest(at: &Path) -> u64 {
    let mut file = File::open(at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    let mut digest = 0;
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    loop {
        match seek(file.as_fd(), SeekFrom::Data(offset)) {
            Ok(data) => offset = data / BLOCK * BLOCK,
            Err(Errno::NXIO) => return digest,
            Err(error) => panic!("{}: {error}", at.display()),
        }
        seek(file.as_fd(), SeekFrom::Start(offset)).expect("a file");
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..]).expect("a file") {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return digest;
        }
        for block in buffer[..filled].chunks(4096) {
            if block.iter().any(|byte| *byte != 0) {
                digest = xxh3_64_with_seed(digest ^ offset, block);
            }
            offset += BLOCK;
        }
    }
}

fn attributes(at: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let count = match llistxattr(at, &mut names) {
        Ok(count) => count,
        Err(Errno::NOTSUP) => 0,
        Err(error) => panic!("{}: {error}", at.display()),
    };
    names.truncate(count);
    let names = names.split_inclusive(|byte| *byte == 0);
    let read = |name: &[u8]| {
        let name = CStr::from_bytes_with_nul(name).expect("a name");
        let mut value = vec![0; 64 << 10];
        let count = lgetxattr(at, name, &mut value).expect("an attribute");
        value.truncate(count);
        (name.to_bytes().to_vec(), value)
    };
    // The policy of the machine labels each file anew.
    let is_kept = |name: &&[u8]| *name != b"security.selinux\0";
    names.filter(is_kept).map(read).collect()
}

#[test]
fn the_comparison_finds_each_difference() {
    use super::trees::{is_root, mode, nasty, stamp};

    if !is_root() {
        crate::support::skip("only root can make and read this tree");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let [original, copy] = ["original", "copy"].map(|name| place.path().join(name));
    nasty(&original, 110);
    let cp = Command::new("cp")
        .arg("-a")
        .args([&original, &copy])
        .status();
    assert!(cp.expect("cp").success());
    assert_same(&original, &copy);
    // None of the changes is in these parts, which are most of the bytes.
    for part in ["sizes", "holes"] {
        fs::remove_dir_all(original.join(part)).unwrap();
        fs::remove_dir_all(copy.join(part)).unwrap();
    }
    for tree in [&original, &copy] {
        stamp(tree, 1_000_000_007, 7);
    }
    let changes: [fn(&Path); 8] = [
        |copy| fs::write(copy.join("names/..."), b"....").unwrap(),
        |copy| mode(&copy.join("modes/4755"), 0o755),
        |copy| stamp(&copy.join("times/nanoseconds"), 1_234_567_890, 123_456_788),
        |copy| fs::remove_file(copy.join("hard/four")).unwrap(),
        |copy| fs::write(copy.join("empty/two/new"), b"").unwrap(),
        |copy| rustix::fs::lremovexattr(copy.join("attributes/file"), "user.empty").unwrap(),
        |copy| fs::remove_dir(copy.join("empty/one")).unwrap(),
        |copy| {
            let _ = fs::remove_file(copy.join("links/file"));
            std::os::unix::fs::symlink("../names/?", copy.join("links/file")).unwrap();
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        change(&copy);
        let [expected, found] = [&original, &copy].map(|top| Tree::read(top));
        let own = difference(&expected, &found, Entry::clone);
        let rsync = std::panic::catch_unwind(|| assert_rsync_finds_nothing(&original, &copy));
        assert!(
            own.is_some() && rsync.is_err(),
            "change {number} is not found"
        );
        // Repairs the copy for the next change.
        let mut rsync = Command::new("rsync");
        rsync.args(["-aHAXSc", "--delete", "--modify-window=-1"]);
        let rsync = rsync.arg(original.join("")).arg(copy.join("")).status();
        assert!(rsync.expect("rsync").success());
    }
}
