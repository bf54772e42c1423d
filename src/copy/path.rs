//! The paths of a copy: those that the user named, the names and relative paths that a peer may send, and the directory
//! that they are relative to.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat, openat2, statat},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::temporary_names::{RESERVED, has_reserved, is_reserved};

/// The most bytes of a name: the limit of Linux.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// The most bytes of a path from a peer. Linux takes paths of 4 KiB in one call; a tree can be deeper.
const MAX_TREE_PATH_BYTES: usize = 64 << 10;

/// The name of an entry in its directory: not empty, without `/` and NUL, and neither `.` nor `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "ByteBuf")]
pub(crate) struct EntryName(#[serde(serialize_with = "serde_bytes::serialize")] Vec<u8>);

/// A path from the place that receives a copy to an entry below it: any number of [`EntryName`]s, joined by `/`. The
/// empty path is the place itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "ByteBuf")]
pub(crate) struct RelativePath(#[serde(serialize_with = "serde_bytes::serialize")] Vec<u8>);

/// Bytes that are not a name or a path that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an entry")]
pub(crate) struct InvalidName;

impl EntryName {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for EntryName {
    type Error = InvalidName;

    fn try_from(bytes: Vec<u8>) -> Result<Self, InvalidName> {
        if is_name(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(InvalidName)
        }
    }
}

impl From<EntryName> for Vec<u8> {
    fn from(name: EntryName) -> Self {
        name.0
    }
}

impl TryFrom<ByteBuf> for EntryName {
    type Error = InvalidName;

    fn try_from(bytes: ByteBuf) -> Result<Self, InvalidName> {
        bytes.into_vec().try_into()
    }
}

impl RelativePath {
    /// Returns the bytes of the path, which do not begin or end with `/`.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if the path names the place itself.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path of the entry `name` below this path.
    pub(crate) fn join(&self, name: &EntryName) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        Self(path)
    }

    /// Returns the path of what `path` names below this path.
    pub(crate) fn join_path(&self, path: &Self) -> Self {
        let parts: Vec<&[u8]> = self.names().chain(path.names()).collect();
        Self(parts.join(&b'/'))
    }

    /// Returns the path without its first name: relative to the directory that the first name is.
    pub(crate) fn without_first(&self) -> Self {
        let parts: Vec<&[u8]> = self.names().skip(1).collect();
        Self(parts.join(&b'/'))
    }

    /// Returns the path without as many first names as `above` has: relative to `above`, if the path is below it.
    pub(crate) fn without_names_of(&self, above: &Self) -> Self {
        let parts: Vec<&[u8]> = self.names().skip(above.names().count()).collect();
        Self(parts.join(&b'/'))
    }

    pub(crate) fn first_names(&self, count: usize) -> Self {
        let parts: Vec<&[u8]> = self.names().take(count).collect();
        Self(parts.join(&b'/'))
    }

    /// Returns the names of the path, from the top.
    pub(crate) fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
    }

    /// Returns the path of the directory that the entry is in, and the entry's name; none for the empty path.
    pub(crate) fn split_last(&self) -> Option<(Self, EntryName)> {
        if self.is_empty() {
            return None;
        }
        let cut = self.0.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = match cut {
            Some(cut) => (&self.0[..cut], &self.0[cut + 1..]),
            None => (&[][..], &self.0[..]),
        };
        Some((Self(parent.to_vec()), EntryName(name.to_vec())))
    }
}

impl TryFrom<Vec<u8>> for RelativePath {
    type Error = InvalidName;

    fn try_from(bytes: Vec<u8>) -> Result<Self, InvalidName> {
        let is_short = bytes.len() <= MAX_TREE_PATH_BYTES;
        if bytes.is_empty() || (is_short && bytes.split(|&byte| byte == b'/').all(is_name)) {
            Ok(Self(bytes))
        } else {
            Err(InvalidName)
        }
    }
}

impl From<RelativePath> for Vec<u8> {
    fn from(path: RelativePath) -> Self {
        path.0
    }
}

impl TryFrom<ByteBuf> for RelativePath {
    type Error = InvalidName;

    fn try_from(bytes: ByteBuf) -> Result<Self, InvalidName> {
        bytes.into_vec().try_into()
    }
}

fn is_name(bytes: &[u8]) -> bool {
    let forbidden = |&byte: &u8| byte == b'/' || byte == 0;
    !bytes.is_empty()
        && bytes.len() <= MAX_NAME_BYTES
        && bytes != b"."
        && bytes != b".."
        && !bytes.iter().any(forbidden)
}

/// What a destination receives, as far as the paths of the sources tell. It decides where the copy goes, so the
/// destination knows it before anything arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CopiedSources {
    /// One source, which arrives under its name.
    One,
    /// One source whose path ends in `.` or `..`, or is `/`: what is in that directory arrives.
    Contents,
    /// More than one source.
    Many,
}

impl CopiedSources {
    /// Returns what arrives from these paths, at least one.
    pub(crate) fn of<'a>(typed: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut typed = typed.into_iter();
        match (typed.next(), typed.next()) {
            (_, Some(_)) => Self::Many,
            (Some(only), None) if top_name(only).is_none() => Self::Contents,
            (Some(_) | None, None) => Self::One,
        }
    }
}

/// Returns the name under which an operand arrives: the last name of its path. None for `.`, `..`, `/` and paths that
/// end so: their entries go straight into the place that receives the copy.
pub(crate) fn top_name(typed: &[u8]) -> Option<EntryName> {
    EntryName::try_from(last_name(typed).to_vec()).ok()
}

/// Returns the last name of a path, without the slashes behind it. Empty for the root.
pub(crate) fn last_name(typed: &[u8]) -> &[u8] {
    let mut names = typed.split(|&byte| byte == b'/');
    names.rfind(|name| !name.is_empty()).unwrap_or_default()
}

/// Returns what the user typed before the last name of a path; empty if there is nothing.
pub(crate) fn typed_folder(typed: &[u8]) -> &[u8] {
    let end = typed
        .iter()
        .rposition(|&byte| byte != b'/')
        .map_or(0, |last| last + 1);
    let start = typed[..end].iter().rposition(|&byte| byte == b'/');
    start.map_or(&[], |slash| &typed[..=slash])
}

/// How often an open is repeated that the kernel gave up, because a rename anywhere in the system met a `..` of a
/// symbolic link. A rename is far longer than an open, so two tries nearly always suffice.
const TRIES: usize = 128;

/// The reason for the user if a symbolic link on the way leads out of the root.
const LEADS_OUT: &str = "leads out of the directory that the server serves";

/// The reason for the user if a path has `..` in it.
const HAS_PARENT: &str = "a server refuses paths with `..` in them";

/// The directory that the paths of an order are relative to.
#[derive(Debug, Clone)]
pub(crate) enum BaseDirectory {
    /// The working directory of the process. Paths may be absolute and may lead anywhere.
    Working,
    /// A directory that no path leads out of. A leading `/` means this directory. `..` and the names of unfinished
    /// files are refused in a path. Symbolic links are followed as long as they stay inside; an absolute target always
    /// leads out.
    Root(Arc<OwnedFd>),
}

impl BaseDirectory {
    /// Opens `path` as a directory that no path of an order leads out of. `path` itself may have links in it.
    /// Fails with a sentence for the user if the directory cannot be opened, or if the kernel has no openat2(2):
    /// nothing else confines paths reliably.
    pub(crate) fn root(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty())
            .map_err(|errno| format!("{shown}: cannot be served: {errno}"))?;
        match open_confined(&root, b"", flags) {
            Ok(_) => Ok(Self::Root(Arc::new(root))),
            Err(Errno::NOSYS | Errno::PERM) => Err(format!(
                "{shown}: cannot be served: openat2(2) is missing, which keeps clients inside the directory; it needs Linux 5.6, a container that allows it, and a systemd unit without RestrictSUIDSGID="
            )),
            Err(errno) => Err(format!("{shown}: cannot be served: {errno}")),
        }
    }

    /// Opens the directory `path` below this one, which no path leads out of. No symbolic link on the way is followed:
    /// others may have made it.
    /// Fails as openat2(2) does: with `ELOOP` for a symbolic link, and with `EXDEV` if a name is `..`.
    pub(crate) fn below(&self, path: &[u8]) -> Result<Self, Errno> {
        let Self::Root(root) = self else {
            return Err(Errno::INVAL);
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open_confined_with(root, path, flags, ResolveFlags::NO_SYMLINKS)?;
        Ok(Self::Root(Arc::new(directory)))
    }

    /// Returns true if no path leads out of the directory.
    pub(crate) fn is_confined(&self) -> bool {
        matches!(self, Self::Root(_))
    }

    /// Returns true if `directory` is the one that no path leads out of.
    pub(crate) fn is_root(&self, directory: impl AsFd) -> bool {
        let Self::Root(root) = self else { return false };
        let id = |fd: BorrowedFd<'_>| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        // What cannot be told is taken for the root, which stays as it is.
        match (id(root.as_fd()), id(directory.as_fd())) {
            (Ok(root), Ok(other)) => root == other,
            _ => true,
        }
    }

    /// Returns true if an entry of this name is kept from the clients of a server: see [`is_reserved`].
    pub(crate) fn reserves(&self, name: &[u8]) -> bool {
        self.is_confined() && is_reserved(name)
    }

    /// Opens what exists at `path`.
    /// Fails as openat(2) and openat2(2) do. `EXDEV` says that the path leads out of the root, or has a name in it that
    /// is kept from clients; see [`refusal`](Self::refusal).
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        match self {
            Self::Working => openat(CWD, path, flags, Mode::empty()),
            Self::Root(root) => open_confined(root, path, flags),
        }
    }

    /// Returns what stat(2) says of `path`, or what lstat(2) says with [`AtFlags::SYMLINK_NOFOLLOW`].
    /// Fails as [`open`](Self::open) does.
    pub(crate) fn stat(&self, path: &[u8], flags: AtFlags) -> Result<Stat, Errno> {
        let Self::Root(root) = self else {
            return statat(CWD, path, flags);
        };
        let mut how = OFlags::PATH | OFlags::CLOEXEC;
        if flags.contains(AtFlags::SYMLINK_NOFOLLOW) {
            how |= OFlags::NOFOLLOW;
        }
        fstat(open_confined(root, path, how)?)
    }

    /// Returns the reason for the user if `path` could not be opened because it leads out of the root or has a name in
    /// it that is kept from clients; none for other failures.
    pub(crate) fn refusal(&self, path: &[u8], errno: Errno) -> Option<&'static str> {
        let is_refused = self.is_confined() && errno == Errno::XDEV;
        is_refused.then(|| {
            if has_parent(path) {
                HAS_PARENT
            } else if has_reserved(path) {
                RESERVED
            } else {
                LEADS_OUT
            }
        })
    }
}

fn open_confined(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    open_confined_with(root, path, flags, ResolveFlags::empty())
}

fn open_confined_with(
    root: &OwnedFd,
    path: &[u8],
    flags: OFlags,
    further: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    if has_parent(path) || has_reserved(path) {
        return Err(Errno::XDEV);
    }
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    let path = match &path[slashes..] {
        [] => &b"."[..],
        path => path,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | further;
    for _ in 0..TRIES {
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

fn has_parent(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|name| name == b"..")
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Read,
        os::unix::fs::symlink,
    };

    use super::*;

    /// Hosts with an earlier build read and write them as such.
    #[test]
    fn names_and_paths_are_encoded_as_lists_of_bytes() {
        let bytes = b"a\xff".to_vec();
        let encoded = postcard::to_stdvec(&bytes).unwrap();
        let name = EntryName::try_from(bytes.clone()).unwrap();
        let path = RelativePath::try_from(bytes).unwrap();
        assert_eq!(postcard::to_stdvec(&name).unwrap(), encoded);
        assert_eq!(postcard::to_stdvec(&path).unwrap(), encoded);
        assert_eq!(postcard::from_bytes(&encoded), Ok(name));
        assert_eq!(postcard::from_bytes(&encoded), Ok(path));
    }

    #[test]
    fn an_operand_arrives_under_its_last_name() {
        let top = |typed: &[u8]| top_name(typed).map(Vec::from);
        assert_eq!(top(b"a"), Some(b"a".to_vec()));
        assert_eq!(top(b"/x/a//"), Some(b"a".to_vec()));
        assert_eq!(top(b"./\xff"), Some(b"\xff".to_vec()));
        for contents in [&b"."[..], b"..", b"/", b"a/.", b"a/..", b"a/./"] {
            assert_eq!(top(contents), None, "{contents:?}");
        }
    }

    #[test]
    fn the_paths_tell_what_arrives() {
        let of = |typed: &[&'static [u8]]| CopiedSources::of(typed.iter().copied());
        assert_eq!(of(&[b"a/"]), CopiedSources::One);
        assert_eq!(of(&[b"a/."]), CopiedSources::Contents);
        assert_eq!(of(&[b"a/.", b"b"]), CopiedSources::Many);
    }

    #[test]
    fn the_folder_is_what_stands_before() {
        assert_eq!(typed_folder(b"a"), b"");
        assert_eq!(typed_folder(b"/a"), b"/");
        assert_eq!(typed_folder(b"x/y/a//"), b"x/y/");
    }

    /// Makes `outside/secret` and `root/in/file`, and links in `root` that stay inside and that lead out.
    fn served() -> (tempfile::TempDir, BaseDirectory) {
        let place = tempfile::tempdir().unwrap();
        let at = |path: &str| place.path().join(path);
        fs::create_dir_all(at("outside")).unwrap();
        fs::create_dir_all(at("root/in/deep")).unwrap();
        fs::write(at("outside/secret"), "secret").unwrap();
        fs::write(at("root/in/file"), "inside").unwrap();
        symlink(at("outside"), at("root/absolute")).unwrap();
        symlink("../outside", at("root/relative")).unwrap();
        symlink(at("root/in"), at("root/absolute-inside")).unwrap();
        symlink("in", at("root/inside")).unwrap();
        symlink("deep/..", at("root/in/back")).unwrap();
        let base = BaseDirectory::root(&at("root")).unwrap();
        (place, base)
    }

    #[test]
    fn a_path_means_what_is_below_the_root() {
        let (_place, base) = served();
        assert!(base.is_confined() && !BaseDirectory::Working.is_confined());
        for path in ["in/file", "/in/file", "//in/./file", "inside/file"] {
            let mut text = String::new();
            let file = base.open(path.as_bytes(), OFlags::RDONLY).unwrap();
            File::from(file).read_to_string(&mut text).unwrap();
            assert_eq!(text, "inside", "{path}");
        }
        let BaseDirectory::Root(root) = &base else {
            panic!("not confined");
        };
        let inode = fstat(root).unwrap().st_ino;
        for path in ["", "/", ".", "//."] {
            let found = base.stat(path.as_bytes(), AtFlags::empty()).unwrap();
            assert_eq!(found.st_ino, inode, "{path:?}");
        }
        assert!(base.open(b"in/back/file", OFlags::RDONLY).is_ok());
        assert_eq!(base.open(b"~/", OFlags::PATH).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn no_path_leads_to_an_unfinished_file() {
        let (place, base) = served();
        let reserved = [
            ".file.rdcp-part",
            ".file.RDCP-map.",
            ".rdcp-0123abcd",
            ".file.rdpipe-0123abcd",
        ];
        for name in reserved {
            fs::write(place.path().join("root/in").join(name), "of another").unwrap();
            assert!(
                base.reserves(name.as_bytes()) && !BaseDirectory::Working.reserves(name.as_bytes())
            );
            for path in [
                format!("in/{name}"),
                format!("/inside/{name}"),
                format!("in//{name}/"),
                format!("in/{name}/x"),
                format!("missing/{name}"),
            ] {
                let errno = base.open(path.as_bytes(), OFlags::PATH).unwrap_err();
                assert_eq!(
                    base.refusal(path.as_bytes(), errno),
                    Some(RESERVED),
                    "{path}"
                );
                assert!(
                    base.stat(path.as_bytes(), AtFlags::SYMLINK_NOFOLLOW)
                        .is_err()
                );
            }
        }
        let free = base.stat(b"in/.rdcp-key", AtFlags::empty());
        assert_eq!(free.unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn no_path_leads_out_of_the_root() {
        let (place, base) = served();
        let own = place.path().join("outside/secret");
        let own = own.to_str().unwrap();
        let out = [
            "absolute",
            "absolute/secret",
            "relative/secret",
            "/relative/secret",
            "absolute-inside/file",
        ];
        for path in out {
            let errno = base.open(path.as_bytes(), OFlags::RDONLY).unwrap_err();
            assert_eq!(base.refusal(path.as_bytes(), errno), Some(LEADS_OUT));
            assert!(base.stat(path.as_bytes(), AtFlags::empty()).is_err());
        }
        for path in ["..", "in/../in/file", "../outside/secret", "in/.."] {
            let errno = base.stat(path.as_bytes(), AtFlags::empty()).unwrap_err();
            assert_eq!(base.refusal(path.as_bytes(), errno), Some(HAS_PARENT));
        }
        // The same path below the root does not exist.
        let errno = base.open(own.as_bytes(), OFlags::RDONLY).unwrap_err();
        assert_eq!(
            (errno, base.refusal(own.as_bytes(), errno)),
            (Errno::NOENT, None)
        );
        let link = base.stat(b"absolute", AtFlags::SYMLINK_NOFOLLOW);
        assert!(link.is_ok());
    }

    #[test]
    fn a_directory_below_is_a_root_of_its_own() {
        let (_place, base) = served();
        for path in ["in", "/in", "/in//.", "in/"] {
            let inner = base.below(path.as_bytes()).unwrap();
            for name in ["file", "/file"] {
                assert!(
                    inner.open(name.as_bytes(), OFlags::RDONLY).is_ok(),
                    "{path}"
                );
            }
            let out = inner.open(b"../in/file", OFlags::RDONLY).unwrap_err();
            assert_eq!(out, Errno::XDEV);
        }
        assert!(
            base.below(b"/")
                .unwrap()
                .open(b"in/file", OFlags::RDONLY)
                .is_ok()
        );
        for (path, errno) in [
            ("inside", Errno::LOOP),
            ("relative", Errno::LOOP),
            ("inside/deep", Errno::LOOP),
            ("in/file", Errno::NOTDIR),
            ("none", Errno::NOENT),
            ("in/..", Errno::XDEV),
        ] {
            assert_eq!(base.below(path.as_bytes()).unwrap_err(), errno, "{path}");
        }
    }

    #[test]
    fn a_link_of_proc_leads_nowhere() {
        let base = BaseDirectory::root(Path::new("/proc")).unwrap();
        for path in ["self/root/etc", "self/cwd", "self/fd/0"] {
            let result = base.open(path.as_bytes(), OFlags::PATH);
            assert_eq!(result.unwrap_err(), Errno::LOOP, "{path}");
        }
    }

    #[test]
    fn only_a_directory_is_served() {
        let (place, _) = served();
        let file = place.path().join("outside/secret");
        let refused = BaseDirectory::root(&file).unwrap_err();
        assert!(refused.contains("cannot be served"), "{refused}");
        assert!(refused.contains("Not a directory"), "{refused}");
    }
}
