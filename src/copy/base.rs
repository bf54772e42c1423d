//! The directory that the paths of an order are relative to.

use std::{os::fd::OwnedFd, path::Path, sync::Arc};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat, openat2, statat},
    io::Errno,
};

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
    /// A directory that no path leads out of. A leading `/` means this directory. `..` in a path is refused. Symbolic
    /// links are followed as long as they stay inside; an absolute target always leads out.
    Root(Arc<OwnedFd>),
}

impl BaseDirectory {
    /// Opens `path` as a directory that no path of an order leads out of. `path` itself may have links in it.
    ///
    /// # Errors
    ///
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
                "{shown}: cannot be served: openat2(2) is missing, which keeps clients inside the directory; it needs Linux 5.6, and a container that allows it"
            )),
            Err(errno) => Err(format!("{shown}: cannot be served: {errno}")),
        }
    }

    /// Returns true if no path leads out of the directory.
    pub(crate) fn is_confined(&self) -> bool {
        matches!(self, Self::Root(_))
    }

    /// Opens what exists at `path`.
    ///
    /// # Errors
    ///
    /// Fails as openat(2) and openat2(2) do. `EXDEV` says that the path leads out of the root; see
    /// [`refusal`](Self::refusal).
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        match self {
            Self::Working => openat(CWD, path, flags, Mode::empty()),
            Self::Root(root) => open_confined(root, path, flags),
        }
    }

    /// Returns what stat(2) says of `path`, or what lstat(2) says with [`AtFlags::SYMLINK_NOFOLLOW`].
    ///
    /// # Errors
    ///
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

    /// Returns the reason for the user if `path` could not be opened because it leads out of the root; none for other
    /// failures.
    pub(crate) fn refusal(&self, path: &[u8], errno: Errno) -> Option<&'static str> {
        let is_refused = self.is_confined() && errno == Errno::XDEV;
        is_refused.then(|| {
            if has_parent(path) {
                HAS_PARENT
            } else {
                LEADS_OUT
            }
        })
    }
}

fn open_confined(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    if has_parent(path) {
        return Err(Errno::XDEV);
    }
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    let path = match &path[slashes..] {
        [] => &b"."[..],
        path => path,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
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
