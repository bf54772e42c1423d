//! The walk through the operands and their trees: opens directories below one another, without following a link, and
//! finds what is to be copied.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat, fstat, openat, openat2},
    io::Errno,
};

use super::{
    jobs::{
        EntryList, JOB_ENTRIES, SourceFolder, SourceRoot, WalkOutlet, WalkStopped, join_shown,
        keep_name, stat_entry,
    },
    state::unreadable,
};
use crate::copy::{
    identity::SourceOperand,
    metadata::{Metadata, attributes_of, metadata_of},
    order::{CopyOptions, NameFilter},
    path::{BaseDirectory, EntryName, RelativePath, last_name, top_name, typed_folder},
    question::MAX_OPERANDS,
    written::EntryId,
};

/// The bytes for one call of getdents64(2): some hundred entries.
const LIST_BYTES: usize = 64 << 10;

/// The note for the user if the directory of a server has what other copies have left unfinished.
const UNFINISHED: &str = "unfinished files of other copies were left out";

/// Walks through operands, on a thread that may block.
pub(crate) struct Walker {
    base: BaseDirectory,
    options: CopyOptions,
    filter: NameFilter,
    outlet: WalkOutlet,
    /// The names under which operands arrive; a directory with its device and inode.
    tops: HashMap<Vec<u8>, Option<EntryId>>,
    /// Operands in one folder that are not walked themselves.
    named: Option<NamedEntries>,
    list: Vec<MaybeUninit<u8>>,
}

struct NamedEntries {
    folder: Arc<SourceFolder>,
    entries: EntryList,
}

/// A directory that is still to be read.
struct WaitingFolder {
    /// The path from the operand.
    below: RelativePath,
    /// The modes of the directories above, up to the operand, the nearest first.
    above: Arc<[u32]>,
}

/// An operand that is a directory.
struct Tree {
    fd: OwnedFd,
    root: Arc<SourceRoot>,
    typed: Vec<u8>,
    top: Option<EntryName>,
}

impl Walker {
    /// Returns a walker through paths that are relative to `base`.
    pub(crate) fn new(
        base: BaseDirectory,
        options: CopyOptions,
        filter: NameFilter,
        outlet: WalkOutlet,
    ) -> Self {
        Self {
            base,
            options,
            filter,
            outlet,
            tops: HashMap::new(),
            named: None,
            list: vec![MaybeUninit::uninit(); LIST_BYTES],
        }
    }

    /// Walks through `paths` in their order. Returns early if the run ends.
    pub(crate) fn run(mut self, paths: Vec<Vec<u8>>) {
        if self.name_operands(&paths).is_err() {
            return;
        }
        for path in paths {
            if self.walk_operand(path).is_err() {
                return;
            }
        }
        if self.deliver_named().is_ok() {
            self.outlet.complete();
        }
    }

    /// Tells the destination what the operands are.
    fn name_operands(&self, paths: &[Vec<u8>]) -> Result<(), WalkStopped> {
        let flags = self.operand_flags();
        let operand = |path: &Vec<u8>| SourceOperand::of(&self.base, path, flags, &self.options);
        for some in paths.chunks(MAX_OPERANDS) {
            let operands = some.iter().filter_map(operand).collect();
            self.outlet.operands(operands, false)?;
        }
        self.outlet.operands(Vec::new(), true)
    }

    /// Returns how an operand is looked at: as the link that it is, or as what a link leads to.
    fn operand_flags(&self) -> AtFlags {
        // A link in a directory that is served may be of another client: it does not stand for its file.
        if self.options.recursive || self.options.archive || self.base.is_confined() {
            AtFlags::SYMLINK_NOFOLLOW
        } else {
            AtFlags::empty()
        }
    }

    fn walk_operand(&mut self, typed: Vec<u8>) -> Result<(), WalkStopped> {
        let recursive = self.options.recursive || self.options.archive;
        let stat = match self.base.stat(&typed, self.operand_flags()) {
            Ok(stat) => stat,
            Err(error) => {
                let is_pattern =
                    error == Errno::NOENT && typed.iter().any(|byte| b"*?".contains(byte));
                let advice = if is_pattern {
                    "; no shell expands a path of another host: name each file, or copy the directory with --exclude"
                } else {
                    ""
                };
                let other = || format!("cannot be read: {error}{advice}");
                let why = self.base.refusal(&typed, error);
                let why = why.map_or_else(other, str::to_owned);
                self.outlet.fail(typed, why);
                return Ok(());
            }
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let why = match kind {
            FileType::Directory if recursive => return self.walk_tree(typed),
            FileType::Directory => "is a directory: give -r or -a to copy it",
            FileType::RegularFile => return self.name_entry(typed, kind),
            _ if recursive => return self.name_entry(typed, kind),
            FileType::Symlink => {
                "is a symbolic link, which a server does not follow; -r copies it as a link"
            }
            _ => "is not a plain file; -r copies it as what it is",
        };
        self.outlet.fail(typed, why.to_owned());
        Ok(())
    }

    /// Adds an operand that is not a directory.
    fn name_entry(&mut self, typed: Vec<u8>, kind: FileType) -> Result<(), WalkStopped> {
        let name = last_name(&typed);
        if self.filter.excludes(name, false) || !self.is_new_top(name, None, &typed) {
            return Ok(());
        }
        let Ok(name) = CString::new(name) else {
            return Ok(());
        };
        let shown = typed_folder(&typed);
        let is_same = |named: &NamedEntries| named.folder.shown == shown;
        if !self.named.as_ref().is_some_and(is_same) {
            self.deliver_named()?;
            match self.open_named(shown) {
                Ok(folder) => {
                    self.named = Some(NamedEntries {
                        folder,
                        entries: EntryList::default(),
                    });
                }
                Err(error) => {
                    self.fail_open(typed, error);
                    return Ok(());
                }
            }
        }
        let Some(named) = &mut self.named else {
            return Ok(());
        };
        named.entries.push(&name, kind);
        if named.entries.len() < JOB_ENTRIES {
            return Ok(());
        }
        let entries = std::mem::take(&mut named.entries);
        self.outlet.deliver(&named.folder, entries)
    }

    fn open_named(&self, shown: &[u8]) -> Result<Arc<SourceFolder>, Errno> {
        let open_path = if shown.is_empty() { b"." } else { shown };
        // The folder itself may be unreadable.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = self.base.open(open_path, flags)?;
        let root = root(open_path, &fstat(&fd)?);
        let mut folder = SourceFolder::top(fd, root, shown.to_vec());
        let is_plain = !(self.options.recursive || self.options.archive);
        folder.follow = is_plain && !self.base.is_confined();
        Ok(Arc::new(folder))
    }

    fn deliver_named(&mut self) -> Result<(), WalkStopped> {
        match self.named.take() {
            Some(named) if !named.entries.is_empty() => {
                self.outlet.deliver(&named.folder, named.entries)
            }
            _ => Ok(()),
        }
    }

    /// Reports that an operand could not be opened.
    fn fail_open(&self, typed: Vec<u8>, error: Errno) {
        let why = self.base.refusal(&typed, error);
        let why = why.map_or_else(|| unreadable(error), str::to_owned);
        self.outlet.fail(typed, why);
    }

    /// Returns true if an operand may be copied to this name, and reports it otherwise. Directories of one name are
    /// merged, but not with `--delete`, which would remove what the others bring; `directory` is the id of a directory.
    fn is_new_top(&mut self, name: &[u8], directory: Option<EntryId>, typed: &[u8]) -> bool {
        let why = match (self.tops.get(name), directory) {
            (None, _) => {
                self.tops.insert(name.to_vec(), directory);
                return true;
            }
            (Some(Some(other)), Some(own)) if *other == own => "is given twice",
            (Some(Some(_)), Some(_)) if !self.options.delete => return true,
            _ => "has the same name as another source, and would replace it",
        };
        self.outlet.fail(typed.to_vec(), why.to_owned());
        false
    }

    /// Walks through a directory and all below it. Only paths of directories wait on the stack, not descriptors, so
    /// that a tree may be deep and wide.
    fn walk_tree(&mut self, typed: Vec<u8>) -> Result<(), WalkStopped> {
        let flags = DIRECTORY_FLAGS | OFlags::NOFOLLOW;
        let opened = self.base.open(&typed, flags);
        let opened = opened.and_then(|fd| fstat(&fd).map(|stat| (fd, stat)));
        let (fd, stat) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.fail_open(typed, error);
                return Ok(());
            }
        };
        let top = top_name(&typed);
        if let Some(name) = &top {
            let id = (stat.st_dev, stat.st_ino);
            if !self.is_new_top(name.as_bytes(), Some(id), &typed) {
                return Ok(());
            }
        }
        let tree = Tree {
            fd,
            root: root(&typed, &stat),
            typed,
            top,
        };
        let mut waiting = vec![WaitingFolder {
            below: RelativePath::default(),
            above: Arc::default(),
        }];
        while let Some(next) = waiting.pop() {
            if self.outlet.is_stopped() {
                return Err(WalkStopped);
            }
            self.walk_folder(&tree, &next, &mut waiting)?;
        }
        Ok(())
    }

    fn walk_folder(
        &mut self,
        tree: &Tree,
        next: &WaitingFolder,
        waiting: &mut Vec<WaitingFolder>,
    ) -> Result<(), WalkStopped> {
        let folder = match self.open_folder(tree, next) {
            Ok(folder) => Arc::new(folder),
            Err(error) => {
                let shown = join_shown(&tree.typed, next.below.as_bytes());
                self.outlet.fail(shown, unreadable(error));
                return Ok(());
            }
        };
        let mut list = std::mem::take(&mut self.list);
        let read = self.read_folder(&folder, &mut list, waiting);
        self.list = list;
        read
    }

    fn open_folder(&self, tree: &Tree, next: &WaitingFolder) -> Result<SourceFolder, Errno> {
        let WaitingFolder { below, above } = next;
        let fd = open_below(tree.fd.as_fd(), below)?;
        let metadata = self.folder_metadata(&fd)?;
        let shown = join_shown(&tree.typed, below.as_bytes());
        let mut folder = SourceFolder::top(fd, Arc::clone(&tree.root), shown);
        folder.path = match &tree.top {
            Some(top) => below
                .names()
                .fold(
                    RelativePath::default().join(top),
                    |path, name| match EntryName::try_from(name.to_vec()) {
                        Ok(name) => path.join(&name),
                        Err(_) => path,
                    },
                ),
            None => below.clone(),
        };
        folder.below = below.clone();
        folder.modes = [metadata.mode]
            .into_iter()
            .chain(above.iter().copied())
            .collect();
        folder.metadata = Some(metadata);
        Ok(folder)
    }

    fn folder_metadata(&self, fd: &OwnedFd) -> Result<Metadata, Errno> {
        let mut metadata = metadata_of(&fstat(fd)?);
        if self.options.archive {
            metadata.attributes = attributes_of(fd)?;
        }
        Ok(metadata)
    }

    fn read_folder(
        &mut self,
        folder: &Arc<SourceFolder>,
        list: &mut [MaybeUninit<u8>],
        waiting: &mut Vec<WaitingFolder>,
    ) -> Result<(), WalkStopped> {
        let mut found = FoundEntries::default();
        let mut is_whole = true;
        let mut entries = RawDir::new(&folder.fd, list);
        loop {
            // A folder may have any number of entries of which none is wanted.
            if entries.is_buffer_empty() && self.outlet.is_stopped() {
                return Err(WalkStopped);
            }
            let Some(entry) = entries.next() else { break };
            match entry {
                Ok(entry) => {
                    let name = entry.file_name();
                    if name != c"." && name != c".." {
                        self.sort_entry(folder, name, entry.file_type(), waiting, &mut found)?;
                    }
                }
                Err(error) => {
                    is_whole = false;
                    let why = format!("cannot be read to its end: {error}");
                    self.outlet.fail(folder.shown.clone(), why);
                    break;
                }
            }
        }
        if self.options.delete && is_whole {
            self.outlet.names(&folder.path, &mut found.names, true)?;
        }
        // A folder without files is sent too.
        if found.is_delivered && found.entries.is_empty() {
            return Ok(());
        }
        self.outlet.deliver(folder, found.entries)
    }

    /// Handles one entry of a folder.
    fn sort_entry(
        &self,
        folder: &Arc<SourceFolder>,
        name: &CStr,
        kind: FileType,
        waiting: &mut Vec<WaitingFolder>,
        found: &mut FoundEntries,
    ) -> Result<(), WalkStopped> {
        if self.base.reserves(name.to_bytes()) {
            self.outlet.note(UNFINISHED);
            return Ok(());
        }
        if self.options.delete {
            keep_name(&mut found.names, name);
            self.outlet.full_names(&folder.path, &mut found.names)?;
        }
        let kind = match kind {
            // The file system does not tell.
            FileType::Unknown => match stat_entry(folder, name) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(error) => {
                    let shown = folder.shown(name.to_bytes());
                    self.outlet.fail(shown, unreadable(error));
                    return Ok(());
                }
            },
            kind => kind,
        };
        let is_directory = kind == FileType::Directory;
        if is_directory || !self.filter.is_empty() {
            let Ok(entry) = EntryName::try_from(name.to_bytes().to_vec()) else {
                return Ok(());
            };
            let below = folder.below.join(&entry);
            if self.filter.excludes(below.as_bytes(), is_directory) {
                return Ok(());
            }
            if is_directory {
                let above = Arc::clone(&folder.modes);
                waiting.push(WaitingFolder { below, above });
                return Ok(());
            }
        }
        found.entries.push(name, kind);
        if found.entries.len() < JOB_ENTRIES {
            return Ok(());
        }
        found.is_delivered = true;
        let entries = std::mem::take(&mut found.entries);
        self.outlet.deliver(folder, entries)
    }
}

/// What was found in one folder and not yet passed on.
#[derive(Default)]
struct FoundEntries {
    entries: EntryList,
    names: Vec<EntryName>,
    is_delivered: bool,
}

fn root(open_path: &[u8], stat: &Stat) -> Arc<SourceRoot> {
    Arc::new(SourceRoot {
        open_path: open_path.to_vec(),
        identity: (stat.st_dev, stat.st_ino),
    })
}

/// The most bytes of a path that are passed to one system call. Linux accepts 4095.
const SEGMENT_BYTES: usize = 3000;

/// The flags for a directory whose entries are read.
pub(crate) const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// Opens the directory `path` below `root`. A link on the way is an error, so a tree that changes leads nowhere else.
/// The path may be longer than a system call accepts.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &RelativePath) -> Result<OwnedFd, Errno> {
    let mut opened: Option<OwnedFd> = None;
    for segment in segments(path.as_bytes()) {
        let base = opened.as_ref().map_or(root, AsFd::as_fd);
        opened = Some(open_segment(base, segment)?);
    }
    match opened {
        Some(opened) => Ok(opened),
        None => openat(root, ".", DIRECTORY_FLAGS, Mode::empty()),
    }
}

fn open_segment(base: BorrowedFd<'_>, segment: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(base, segment, DIRECTORY_FLAGS, Mode::empty(), resolve) {
            // Something was renamed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Linux before 5.6, or a sandbox that does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return open_each(base, segment),
            result => return result,
        }
    }
}

/// Opens one directory after another, for systems without openat2(2).
fn open_each(base: BorrowedFd<'_>, segment: &[u8]) -> Result<OwnedFd, Errno> {
    let mut opened: Option<OwnedFd> = None;
    for name in segment.split(|&byte| byte == b'/') {
        let base = opened.as_ref().map_or(base, AsFd::as_fd);
        let flags = DIRECTORY_FLAGS | OFlags::NOFOLLOW;
        opened = Some(openat(base, name, flags, Mode::empty())?);
    }
    opened.ok_or(Errno::NOENT)
}

/// Cuts a path at slashes into pieces that a system call accepts.
fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = path;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if rest.len() <= SEGMENT_BYTES {
            return Some(std::mem::take(&mut rest));
        }
        // A name has at most 255 bytes, so there is a slash.
        let cut = rest[..SEGMENT_BYTES]
            .iter()
            .rposition(|&byte| byte == b'/')
            .unwrap_or(rest.len());
        let segment = &rest[..cut];
        rest = rest.get(cut + 1..).unwrap_or_default();
        Some(segment)
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsFd, unix::fs::symlink},
    };

    use super::*;

    fn relative(path: &str) -> RelativePath {
        RelativePath::try_from(path.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn long_paths_are_cut_at_slashes() {
        let name = "n".repeat(200);
        let path = vec![name.as_str(); 40].join("/");
        let cut: Vec<&[u8]> = segments(path.as_bytes()).collect();
        assert!(cut.len() > 2 && cut.iter().all(|segment| segment.len() <= SEGMENT_BYTES));
        assert_eq!(cut.join(&b'/'), path.as_bytes());
    }

    #[test]
    fn a_link_leads_nowhere() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("tree/inner")).unwrap();
        fs::create_dir_all(place.path().join("outside/inner")).unwrap();
        symlink("../outside", place.path().join("tree/link")).unwrap();
        let root = fs::File::open(place.path().join("tree")).unwrap();
        assert!(open_below(root.as_fd(), &relative("inner")).is_ok());
        assert!(open_below(root.as_fd(), &relative("")).is_ok());
        for path in ["link", "link/inner"] {
            assert!(open_below(root.as_fd(), &relative(path)).is_err());
            assert!(open_each(root.as_fd(), path.as_bytes()).is_err());
        }
        assert!(open_each(root.as_fd(), b"inner").is_ok());
    }
}
