//! The steps that make a scene. Each step can be applied, and printed as a shell command that does the same.

use std::{
    ffi::OsStr,
    fmt::{self, Write},
    fs::{self, File, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, lchown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, makedev, mknodat,
    utimensat,
};

/// A step of the making of a scene. The paths are relative to the directory of the scene.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Directory(PathBuf),
    /// A file of so many bytes of one letter.
    File(PathBuf, usize, char),
    /// A file that is one hole.
    Hole(PathBuf, u64),
    Symlink(PathBuf, PathBuf),
    /// A further name of a file: the new name, and the old one.
    HardLink(PathBuf, PathBuf),
    Fifo(PathBuf),
    Socket(PathBuf),
    /// A character device with the major number 1.
    Device(PathBuf, u32),
    Mode(PathBuf, u32),
    Owners(PathBuf, u32, u32),
    Times(PathBuf, i64, u32),
    Attribute(PathBuf, &'static str, String),
    /// The ACL of an entry, or the default one of a directory, as the kernel stores it, and as `setfacl` takes it.
    Acl(PathBuf, &'static str, Vec<u8>, String),
    Remove(PathBuf),
    /// `cp -a` of one directory to a new name.
    Copy(PathBuf, PathBuf),
}

impl Step {
    /// Returns the path of the entry that the step makes.
    pub(super) fn made(&self) -> Option<&Path> {
        match self {
            Self::Directory(at)
            | Self::File(at, ..)
            | Self::Hole(at, _)
            | Self::Symlink(at, _)
            | Self::HardLink(at, _)
            | Self::Fifo(at)
            | Self::Socket(at)
            | Self::Device(at, _) => Some(at),
            _ => None,
        }
    }

    /// Applies the step below `top`. A step that cannot be applied is left out, as in a shell script: its file may have
    /// been removed by an earlier step.
    pub(super) fn apply(&self, top: &Path) {
        let _ = self.try_apply(top);
    }

    fn try_apply(&self, top: &Path) -> io::Result<()> {
        let at = |path: &Path| top.join(path);
        match self {
            Self::Directory(path) => fs::create_dir(at(path))?,
            Self::File(path, bytes, letter) => {
                let content = letter.to_string().repeat(*bytes);
                fs::write(at(path), content)?;
            }
            Self::Hole(path, bytes) => File::create(at(path))?.set_len(*bytes)?,
            Self::Symlink(path, target) => symlink(target, at(path))?,
            Self::HardLink(path, old) => fs::hard_link(at(old), at(path))?,
            Self::Fifo(path) => node(&at(path), FileType::Fifo, 0)?,
            Self::Socket(path) => drop(UnixListener::bind(at(path))?),
            Self::Device(path, minor) => {
                node(&at(path), FileType::CharacterDevice, makedev(1, *minor))?;
            }
            Self::Mode(path, mode) => {
                if !at(path).is_symlink() {
                    fs::set_permissions(at(path), Permissions::from_mode(*mode))?;
                }
            }
            Self::Owners(path, user, group) => lchown(at(path), Some(*user), Some(*group))?,
            Self::Times(path, seconds, nanoseconds) => {
                let time = Timespec {
                    tv_sec: *seconds,
                    tv_nsec: (*nanoseconds).into(),
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Self::Attribute(path, name, value) => {
                lsetxattr(at(path), *name, value.as_bytes(), XattrFlags::empty())?;
            }
            Self::Acl(path, name, value, _) => {
                if !at(path).is_symlink() {
                    lsetxattr(at(path), *name, value, XattrFlags::empty())?;
                }
            }
            Self::Remove(path) => run(Command::new("rm").arg("-rf").arg(at(path)))?,
            Self::Copy(from, to) => run(Command::new("cp").arg("-a").args([at(from), at(to)]))?,
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "mkdir {}", quoted(path)),
            Self::File(path, 0, _) => write!(f, ": >{}", quoted(path)),
            Self::File(path, bytes, letter) => {
                let path = quoted(path);
                write!(f, "head -c {bytes} /dev/zero | tr '\\0' {letter} >{path}")
            }
            Self::Hole(path, bytes) => write!(f, "truncate -s {bytes} {}", quoted(path)),
            Self::Symlink(path, target) => {
                write!(f, "ln -s {} {}", quoted(target), quoted(path))
            }
            Self::HardLink(path, old) => write!(f, "ln {} {}", quoted(old), quoted(path)),
            Self::Fifo(path) => write!(f, "mkfifo {}", quoted(path)),
            Self::Socket(path) => {
                let python = "import socket,sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])";
                write!(f, "python3 -c '{python}' {}", quoted(path))
            }
            Self::Device(path, minor) => write!(f, "mknod {} c 1 {minor}", quoted(path)),
            Self::Mode(path, mode) => {
                let path = quoted(path);
                write!(f, "test -L {path} || chmod {mode:04o} {path}")
            }
            Self::Owners(path, user, group) => {
                write!(f, "chown -h {user}:{group} {}", quoted(path))
            }
            Self::Times(path, seconds, nanoseconds) => {
                let path = quoted(path);
                write!(f, "touch -h -d @{seconds}.{nanoseconds:09} {path}")
            }
            Self::Attribute(path, name, value) => {
                write!(f, "setfattr -h -n {name} -v {value} {}", quoted(path))
            }
            Self::Acl(path, name, _, text) => {
                let default = if *name == DEFAULT_ACL { "-d " } else { "" };
                let path = quoted(path);
                write!(f, "test -L {path} || setfacl {default}--set {text} {path}")
            }
            Self::Remove(path) => write!(f, "rm -rf {}", quoted(path)),
            Self::Copy(from, to) => write!(f, "cp -a {} {}", quoted(from), quoted(to)),
        }
    }
}

/// The extended attribute that has the ACL of an entry.
pub(super) const ACL: &str = "system.posix_acl_access";

/// The extended attribute that has the ACL which new entries of a directory inherit.
pub(super) const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Returns a step that gives an entry an ACL: the rights of its owner, of one more user, of its group, the mask and the
/// rights of all others.
pub(super) fn acl(at: &Path, name: &'static str, user: u32, rights: [u16; 5]) -> Step {
    // The kernel's format: a version, then entries of a tag, rights and a number (linux/posix_acl_xattr.h).
    const TAGS: [u16; 5] = [0x01, 0x02, 0x04, 0x10, 0x20];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, right) in TAGS.into_iter().zip(rights) {
        let number = if tag == TAGS[1] { user } else { u32::MAX };
        value.extend(tag.to_le_bytes());
        value.extend(right.to_le_bytes());
        value.extend(number.to_le_bytes());
    }
    let [owner, one, group, mask, other] = rights;
    let text = format!("u::{owner},u:{user}:{one},g::{group},m::{mask},o::{other}");
    Step::Acl(at.to_owned(), name, value, text)
}

fn node(at: &Path, kind: FileType, device: u64) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o644);
    Ok(mknodat(CWD, at, kind, mode, device)?)
}

/// Runs a command, without its messages.
fn run(command: &mut Command) -> io::Result<()> {
    command.stderr(Stdio::null()).status().map(drop)
}

/// Returns a path as a word of bash.
pub(super) fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+=:,".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut word = String::from("$'");
    for byte in bytes {
        match byte {
            b'\'' | b'\\' => word.extend(['\\', char::from(*byte)]),
            b' '..=b'~' => word.push(char::from(*byte)),
            byte => write!(word, "\\x{byte:02x}").expect("a string"),
        }
    }
    word + "'"
}

/// Returns the path of `name` in a directory.
pub(super) fn within(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}
