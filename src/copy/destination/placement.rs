//! Where the sources of a copy go, by the rules of cp, and copies onto themselves: before anything is written, the
//! operands of the source are compared with what their copies would replace, and with the directories that the copies go
//! into.

use std::{
    collections::HashSet,
    ffi::OsStr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
    sync::OnceLock,
};

use rustix::{
    fs::{AtFlags, FileType, OFlags, Stat, statat},
    io::Errno,
};

use super::state::{DestinationState, errno_text};
use crate::{
    copy::{
        budget::SET_ENTRY_BYTES,
        identity::SourceOperand,
        job::CopyError,
        order::CopyOptions,
        path::{BaseDirectory, CopiedSources, EntryName, RelativePath, top_name},
        temporary_names::{RESERVED, has_reserved, is_reserved, name_of_part},
    },
    fd::EntryIdentity,
    printable::escaped,
};

/// The place that receives a copy: an open directory, and what becomes of the first name of each path.
///
/// Two kinds of paths occur. A *wire path* is relative to the place as the source sees it; its first name is the name
/// of a source. A *local path* is relative to [`root`](Self::root).
#[derive(Debug)]
pub(super) struct Placement {
    root: OwnedFd,
    /// True if the root is the directory that a server serves.
    is_served_itself: bool,
    /// The path of the root as the user typed it; empty for the working directory.
    shown_root: Vec<u8>,
    top: TopName,
    sources: CopiedSources,
    /// True if the names of unfinished files are kept from the source, because a client of a server sends them.
    is_served: bool,
    /// The name of the only source that the place receives, unless it keeps the names of the sources.
    only_source: OnceLock<Vec<u8>>,
}

/// What becomes of the first name of a wire path.
#[derive(Debug)]
enum TopName {
    /// The name is kept: this local path is a directory that receives the sources. Empty if it is the root; another
    /// one is made (`-P`).
    Kept { below: RelativePath },
    /// The name is replaced: this local path is to be the copy of the only source.
    Replaced {
        path: RelativePath,
        /// True if the user typed a `/` at the end.
        is_directory: bool,
    },
    /// The name is dropped: the root itself is the copy of the only source (`-T`).
    Dropped,
}

/// The local folder of a wire path, and the local names of its entries.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlacedFolder {
    pub(super) path: RelativePath,
    pub(super) entries: EntryNames,
}

/// The reason why the folder at a wire path has no place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlaceFault {
    /// The source breaks the protocol.
    Broken(String),
    /// This local path, in which the folder is, has a name that is kept from the clients of a server.
    Reserved(RelativePath),
}

impl PlaceFault {
    /// Returns the reason for the user.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Broken(why) => why,
            Self::Reserved(_) => format!("its directory {RESERVED}"),
        }
    }
}

/// The local names of the entries of a folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryNames {
    /// The names that the source has.
    Own,
    /// The name that the user gave to the only entry.
    Renamed(EntryName),
    /// No entry may be written, because of this reason.
    Refused(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryNaming {
    /// The user typed it as the destination.
    Destination,
    /// It is the name of a source, in the directory that the user typed as the destination.
    Source,
    Tree,
}

impl Placement {
    /// Finds the place for `typed`, the destination that the user typed, relative to `base`. Makes nothing.
    /// Fails with a sentence for the user if the sources cannot go there.
    pub(super) fn find(
        base: &BaseDirectory,
        typed: &[u8],
        sources: CopiedSources,
        options: &CopyOptions,
    ) -> Result<Self, String> {
        let many = sources == CopiedSources::Many;
        let text = if typed.is_empty() { b"." } else { typed };
        let path = Path::new(OsStr::from_bytes(text));
        let shown = path.display();
        let kind = base.stat(text, AtFlags::empty());
        let kind = kind.map(|stat| FileType::from_raw_mode(stat.st_mode));
        if options.no_target_directory && many {
            return Err(format!(
                "{shown}: more than one source cannot be copied to one name"
            ));
        }
        if kind == Ok(FileType::Directory) {
            let root = open_root(base, path)?;
            let top = if options.no_target_directory {
                TopName::Dropped
            } else {
                let below = RelativePath::default();
                TopName::Kept { below }
            };
            return Ok(Self::new(base, root, text.to_vec(), top, sources));
        }
        match kind {
            Ok(_) if many => {
                return Err(format!(
                    "{shown} is not a directory, so it cannot receive more than one source"
                ));
            }
            Err(Errno::NOENT) if many && !options.parents => return Err(missing(path)),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(format!("{shown}: {}", reason(base, text, errno))),
        }
        let (root, shown_root, path) = beside(base, path, options.parents)?;
        let is_directory = text.ends_with(b"/");
        let takes_contents = sources == CopiedSources::Contents;
        let is_received = options.parents && is_directory && !options.no_target_directory;
        let top = if many || (is_received && !takes_contents) {
            TopName::Kept { below: path }
        } else {
            TopName::Replaced { path, is_directory }
        };
        Ok(Self::new(base, root, shown_root, top, sources))
    }

    fn new(
        base: &BaseDirectory,
        root: OwnedFd,
        shown_root: Vec<u8>,
        top: TopName,
        sources: CopiedSources,
    ) -> Self {
        Self {
            is_served_itself: base.is_root(&root),
            is_served: base.is_confined(),
            root,
            shown_root,
            top,
            sources,
            only_source: OnceLock::new(),
        }
    }

    /// Returns the directory that every local path is relative to.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns the reason for the user why no file can be copied here, only a directory; none if one can.
    pub(super) fn refuses_files(&self) -> Option<String> {
        match &self.top {
            TopName::Replaced {
                is_directory: true, ..
            } => Some(missing(Path::new(OsStr::from_bytes(
                &self.shown(&self.base()),
            )))),
            _ => None,
        }
    }

    /// Returns true if a client of a server sends the copy.
    pub(super) fn is_served(&self) -> bool {
        self.is_served
    }

    /// Returns the local path of the copy of an operand.
    pub(super) fn copy_of(&self, typed: &[u8]) -> RelativePath {
        match (&self.top, top_name(typed)) {
            (TopName::Kept { .. }, Some(name)) => self.base().join(&name),
            _ => self.base(),
        }
    }

    /// Returns true if a local path is that of the directory that a server serves: whatever a client sends, it keeps its
    /// mode, owner, times and attributes.
    pub(super) fn is_served_itself(&self, local: &RelativePath) -> bool {
        self.is_served_itself && local.is_empty()
    }

    /// Returns true if the entry `name` is kept from the source, as an unfinished file of any client.
    pub(super) fn reserves(&self, name: &[u8]) -> bool {
        self.is_served && is_reserved(name)
    }

    /// Returns true if a symbolic link with this target would lead to what is kept from the source.
    pub(super) fn reserves_target(&self, target: &[u8]) -> bool {
        self.is_served && has_reserved(target)
    }

    /// Checks that the contents of a directory may go straight into the place.
    /// Fails if the user named no directory whose contents are copied.
    pub(super) fn check_contents(&self) -> Result<(), &'static str> {
        match self.sources {
            CopiedSources::Contents | CopiedSources::Many => Ok(()),
            CopiedSources::One => Err("the contents of a directory instead of the directory"),
        }
    }

    /// Returns the local folder of a wire path.
    /// Fails if the path belongs to a second source, and the place receives one only, or if a name in it is kept from
    /// the source.
    pub(super) fn folder(&self, path: &RelativePath) -> Result<PlacedFolder, PlaceFault> {
        let Some(first) = path.names().next() else {
            return Ok(self.place_itself());
        };
        let path = match &self.top {
            TopName::Kept { below } => below.join_path(path),
            TopName::Replaced { .. } | TopName::Dropped
                if self.sources == CopiedSources::Contents =>
            {
                self.base().join_path(path)
            }
            TopName::Replaced { .. } | TopName::Dropped => {
                self.check_source(first).map_err(PlaceFault::Broken)?;
                self.base().join_path(&path.without_first())
            }
        };
        if let Some(above) = path.names().position(|name| self.reserves(name)) {
            return Err(PlaceFault::Reserved(path.first_names(above + 1)));
        }
        Ok(PlacedFolder {
            path,
            entries: EntryNames::Own,
        })
    }

    /// Returns the local folder and the local name of the entry at a wire path.
    /// Fails if the path belongs to a second source, and the place receives one only, or if the entry may not be
    /// written.
    pub(super) fn entry(&self, path: &RelativePath) -> Result<(RelativePath, EntryName), String> {
        let Some((parent, name)) = path.split_last() else {
            return Err("the place itself is a directory".to_owned());
        };
        let folder = self.folder(&parent).map_err(PlaceFault::into_text)?;
        let name = self.entry_name(&folder.entries, name)?;
        Ok((folder.path, name))
    }

    /// Returns the local name of the entry `name` of a folder.
    /// Fails if the entry is a second source where the place receives one only, if it may not be written, or if its
    /// name is one of those that unfinished files have: it would be taken for a part of another file, and removed with
    /// it, or it is that of another client.
    pub(super) fn entry_name(
        &self,
        entries: &EntryNames,
        name: EntryName,
    ) -> Result<EntryName, String> {
        let local = match entries {
            EntryNames::Own => name,
            EntryNames::Renamed(own) => {
                self.check_source(name.as_bytes())?;
                own.clone()
            }
            EntryNames::Refused(why) => return Err((*why).to_owned()),
        };
        if name_of_part(local.as_bytes()).is_some() || self.reserves(local.as_bytes()) {
            let shown = String::from_utf8_lossy(local.as_bytes()).into_owned();
            return Err(format!(
                "{shown} has a name that rdcp gives to unfinished files: finish that copy with --resume, remove it, or \
                 rename it"
            ));
        }
        Ok(local)
    }

    pub(super) fn naming(&self, folder: &PlacedFolder) -> EntryNaming {
        let receives_sources =
            self.sources != CopiedSources::Contents && folder.path == self.base();
        match (&self.top, &folder.entries) {
            (_, EntryNames::Renamed(_)) => EntryNaming::Destination,
            (TopName::Kept { .. }, EntryNames::Own) if receives_sources => EntryNaming::Source,
            _ => EntryNaming::Tree,
        }
    }

    /// Returns true if a local path is in a directory that receives what a directory of the source has. What the user
    /// named, and what is above it, is in none: it is beside the copied directories.
    pub(super) fn is_in_copied_directory(&self, local: &RelativePath) -> bool {
        !self.below_source(local).is_empty()
    }

    /// Returns a local path relative to the copy of the directory that the user named. Empty for that copy itself, for
    /// other copies that the user named, and for what is above them.
    pub(super) fn below_source(&self, local: &RelativePath) -> RelativePath {
        match &self.top {
            TopName::Kept { below } if self.sources != CopiedSources::Contents => {
                local.without_names_of(below).without_first()
            }
            TopName::Kept { .. } | TopName::Dropped => local.clone(),
            TopName::Replaced { path, .. } => local.without_names_of(path),
        }
    }

    /// Returns the path of the target that a local path is in: what the user named as the copy, or for copies into a
    /// directory the entry of that directory. None for a path that is above every target.
    pub(super) fn target_of(&self, local: &RelativePath) -> Option<RelativePath> {
        match &self.top {
            TopName::Replaced { path, .. } => {
                let rest = local.as_bytes().strip_prefix(path.as_bytes())?;
                matches!(rest, [] | [b'/', ..]).then(|| path.clone())
            }
            TopName::Kept { below } if self.sources != CopiedSources::Contents => {
                let above = below.names().count();
                let target = local.first_names(above + 1);
                (target.names().count() > above).then_some(target)
            }
            TopName::Kept { .. } | TopName::Dropped => Some(RelativePath::default()),
        }
    }

    /// Returns a local path as the user would type it.
    pub(super) fn shown(&self, local: &RelativePath) -> Vec<u8> {
        let mut shown = self.shown_root.clone();
        if !shown.is_empty() && !shown.ends_with(b"/") && !local.is_empty() {
            shown.push(b'/');
        }
        shown.extend_from_slice(local.as_bytes());
        shown
    }

    /// Returns the folder that the empty wire path means.
    fn place_itself(&self) -> PlacedFolder {
        let takes_contents = self.sources == CopiedSources::Contents;
        let entries = match &self.top {
            TopName::Dropped if !takes_contents => {
                EntryNames::Refused("a directory cannot be replaced by something else")
            }
            TopName::Replaced {
                is_directory: true, ..
            } if !takes_contents => EntryNames::Refused("the destination is not a directory"),
            TopName::Replaced { path, .. } if !takes_contents => match path.split_last() {
                Some((path, name)) => {
                    let entries = EntryNames::Renamed(name);
                    return PlacedFolder { path, entries };
                }
                None => EntryNames::Own,
            },
            _ => EntryNames::Own,
        };
        PlacedFolder {
            path: self.base(),
            entries,
        }
    }

    /// Returns the local path that the copy of the only source has, or the directory that receives the sources.
    pub(super) fn base(&self) -> RelativePath {
        match &self.top {
            TopName::Replaced { path, .. } | TopName::Kept { below: path } => path.clone(),
            TopName::Dropped => RelativePath::default(),
        }
    }

    fn check_source(&self, name: &[u8]) -> Result<(), String> {
        if self.only_source.get_or_init(|| name.to_vec()) == name {
            Ok(())
        } else {
            Err("the place receives one source only".to_owned())
        }
    }
}

/// Finds the place for a path that does not exist or is not a directory: the deepest directory above it that exists,
/// its path as the user typed it, and the rest of the path. Only the last name may be missing without `parents`.
fn beside(
    base: &BaseDirectory,
    path: &Path,
    parents: bool,
) -> Result<(OwnedFd, Vec<u8>, RelativePath), String> {
    let shown = path.display();
    let mut rest: Vec<Vec<u8>> = Vec::new();
    let mut above = path.to_owned();
    loop {
        let Some(name) = above.file_name() else {
            return Err(format!("{shown}: a missing path cannot have `..` in it"));
        };
        rest.push(name.as_bytes().to_vec());
        above = above.parent().map(Path::to_owned).unwrap_or_default();
        let found = base.stat(reachable(&above), AtFlags::empty());
        match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Directory) => break,
            Ok(_) => return Err(format!("{} is not a directory", above.display())),
            Err(Errno::NOENT) if parents => {}
            Err(Errno::NOENT) => return Err(missing(&above)),
            Err(errno) => {
                let why = reason(base, reachable(&above), errno);
                return Err(format!("{}: {why}", above.display()));
            }
        }
    }
    rest.reverse();
    let rest = RelativePath::try_from(rest.join(&b'/'));
    let rest = rest.map_err(|error| format!("{shown}: {error}"))?;
    let root = open_root(base, &above)?;
    Ok((root, above.into_os_string().into_vec(), rest))
}

/// Returns the sentence for a directory that does not exist.
fn missing(directory: &Path) -> String {
    // Without the slashes at the end.
    let directory: std::path::PathBuf = directory.components().collect();
    format!("{} does not exist; give -P to make it", directory.display())
}

fn open_root(base: &BaseDirectory, path: &Path) -> Result<OwnedFd, String> {
    let text = reachable(path);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    base.open(text, flags)
        .map_err(|errno| format!("{}: {}", path.display(), reason(base, text, errno)))
}

/// Returns the bytes that open a path. The empty path is the base itself.
fn reachable(path: &Path) -> &[u8] {
    match path.as_os_str().as_bytes() {
        [] => b".",
        text => text,
    }
}

fn reason(base: &BaseDirectory, path: &[u8], errno: Errno) -> String {
    let refusal = base.refusal(path, errno);
    refusal.map_or_else(|| errno_text(errno), str::to_owned)
}

/// What a destination knows of the operands of its source.
#[derive(Debug, Default)]
pub(super) struct ComparedOperands {
    /// The directory that receives the copy, and those that it is in.
    place: Option<Vec<EntryIdentity>>,
    /// With `--delete`: the directories that become equal to those of the source.
    mirrored: HashSet<EntryIdentity>,
    /// With `--delete`: the directories that operands are in.
    sources: HashSet<EntryIdentity>,
}

impl ComparedOperands {
    /// Compares operands with their copies.
    /// Fails with the reason for the user if a copy would replace or remove its own source, or would be in it.
    pub(super) fn compare(
        &mut self,
        state: &DestinationState,
        operands: &[SourceOperand],
    ) -> Result<(), CopyError> {
        for operand in operands {
            self.compare_one(state, operand)?;
        }
        Ok(())
    }

    fn compare_one(
        &mut self,
        state: &DestinationState,
        operand: &SourceOperand,
    ) -> Result<(), CopyError> {
        let placement = &state.placement;
        let local = placement.copy_of(&operand.typed);
        let refuse = |why: String| {
            state.refuse(&why);
            CopyError::Local(why)
        };
        let source = escaped(&operand.typed);
        let copy = escaped(&placement.shown(&local));
        let existing = Existing::at(placement, &local);
        if existing.is(operand) {
            let kind = if operand.is_tree { "directory" } else { "file" };
            return Err(refuse(format!(
                "{source} and {copy} are the same {kind}; nothing was done"
            )));
        }
        if !operand.is_tree {
            if let Some(why) = placement.refuses_files() {
                return Err(refuse(why));
            }
            return self.keep_sources(state, operand);
        }
        let place = self
            .place
            .get_or_insert_with(|| EntryIdentity::chain(placement.root(), |_| false));
        // A filter may leave the destination out.
        if state.filter.is_empty() && place.contains(&operand.own) {
            return Err(refuse(format!(
                "{source} cannot be copied into itself: {copy} is in it; nothing was done"
            )));
        }
        self.keep_sources(state, operand)?;
        if let Some(own) = existing.own.filter(|_| state.options.delete) {
            state.keep(SET_ENTRY_BYTES)?;
            self.mirrored.insert(own);
        }
        if self.mirrored.is_disjoint(&self.sources) {
            return Ok(());
        }
        Err(refuse(format!(
            "--delete would remove a source: it is in {copy}, which becomes equal to {source}; nothing was done"
        )))
    }

    /// Keeps the directories that an operand is in.
    fn keep_sources(
        &mut self,
        state: &DestinationState,
        operand: &SourceOperand,
    ) -> Result<(), CopyError> {
        for directory in &operand.chain {
            if !self.sources.contains(directory) {
                state.keep(SET_ENTRY_BYTES)?;
                self.sources.insert(*directory);
            }
        }
        Ok(())
    }
}

/// What the place has already under the name of a copy.
struct Existing {
    own: Option<EntryIdentity>,
    /// What it leads to, if it is a symbolic link.
    led_to: Option<EntryIdentity>,
}

impl Existing {
    fn at(placement: &Placement, local: &RelativePath) -> Self {
        let path = match local.as_bytes() {
            [] => b".",
            path => path,
        };
        let stat = |flags| statat(placement.root(), path, flags).ok();
        let own = stat(AtFlags::SYMLINK_NOFOLLOW);
        let is_link = |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_symlink();
        // In a served directory a link may be of any client, and lead anywhere.
        let is_followed = own.as_ref().is_some_and(is_link) && !placement.is_served();
        let led_to = is_followed.then(|| stat(AtFlags::empty())).flatten();
        let identity = |stat: Option<Stat>| stat.and_then(|stat| EntryIdentity::of(&stat));
        Self {
            own: identity(own),
            led_to: identity(led_to),
        }
    }

    /// Returns true if the operand is what would be replaced, or if a link would be copied onto what it leads to.
    fn is(&self, operand: &SourceOperand) -> bool {
        let is = |one: Option<EntryIdentity>, other| one.is_some() && one == other;
        is(self.own, Some(operand.own))
            || is(self.led_to, Some(operand.own))
            || is(self.own, operand.leads_to)
    }
}
