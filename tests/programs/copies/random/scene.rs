//! Random scenes: a tree to copy, and what is at its destination before; and the steps that make a scene. Each step can
//! be applied, and printed as a shell command that does the same.

use std::{
    ffi::OsStr,
    fmt::{self, Write},
    fs::{self, File, Permissions},
    io,
    ops::Range,
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

use crate::support::random::Random;

/// The user and group of the trials without root.
pub(super) const USER: u32 = 65_534;

/// Names, so few that two trees have many in common.
const NAMES: [&[u8]; 13] = [
    b"a",
    b"b",
    b"c",
    b"d.o",
    b"e.o",
    b".hidden",
    b"-n",
    b"sp ace",
    b"new\nline",
    b"\xff\xfe",
    b".rdcp-0123abcg",
    b".a.rdcp-par",
    b"*",
];

/// Sizes of files, on both sides of those at which a copy changes its method.
const SIZES: [usize; 9] = [0, 1, 5, 6, 4096, 70_000, 262_143, 262_144, 262_145];

/// What a scene may have.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each of them is independent of the others"
)]
pub(super) struct Traits {
    /// Entries have other owners than [`USER`].
    pub(super) has_owners: bool,
    pub(super) has_devices: bool,
    pub(super) has_fifos: bool,
    /// Some entries forbid reading or writing.
    pub(super) has_locks: bool,
    pub(super) has_hard_links: bool,
    pub(super) has_acls: bool,
}

/// Makes the steps of scenes.
pub(super) struct Maker<'a> {
    random: &'a mut Random,
    traits: Traits,
    steps: Vec<Step>,
    /// Modes and times of directories, which come after what is in them.
    last: Vec<Step>,
    /// The files so far, for hard links.
    files: Vec<PathBuf>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(random: &'a mut Random, traits: Traits) -> Self {
        Self {
            random,
            traits,
            steps: Vec::new(),
            last: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Returns the steps: those of directories last, and deep directories before their parents.
    pub(super) fn steps(mut self) -> Vec<Step> {
        self.finish_directories();
        self.steps
    }

    fn finish_directories(&mut self) {
        self.steps.extend(self.last.drain(..).rev());
    }

    /// Adds no FIFOs and devices from now on.
    pub(super) fn leave_out_special(&mut self) {
        self.traits.has_fifos = false;
        self.traits.has_devices = false;
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.within(0..100) < percent
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        let at = self.random.within(0..all.len() as u64);
        all[usize::try_from(at).expect("it is small")]
    }

    /// Returns a random number.
    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        self.random.within(range)
    }

    pub(super) fn directory(&mut self, at: &Path) {
        self.steps.push(Step::Directory(at.to_owned()));
        self.metadata(at, true);
    }

    /// Adds a directory with a random tree in it.
    pub(super) fn tree(&mut self, at: &Path) {
        self.files
            .retain(|file| file.starts_with("s") == at.starts_with("s"));
        self.directory(at);
        self.entries(at, 3);
    }

    /// Adds the file that a command names as a source: a file, mostly, or a link to one.
    pub(super) fn named_source(&mut self, at: &Path) {
        match self.within(0..6) {
            0 => self.symlink(at, Path::new("g")),
            1 if self.traits.has_hard_links && !self.files.is_empty() => self.hard_link(at),
            _ => self.file(at),
        }
    }

    /// Adds what has the name of a copy: what rdcp replaces, and does not write in place or copy into.
    pub(super) fn named_destination(&mut self, at: &Path, may_be_directory: bool) {
        match self.within(0..6) {
            0 => self.symlink(at, Path::new("nowhere")),
            1 if may_be_directory => self.directory(at),
            _ => self.file(at),
        }
    }

    /// Adds random entries to a directory.
    fn entries(&mut self, at: &Path, levels: u32) {
        for name in NAMES {
            if self.chance(35) {
                self.entry(&within(at, name), levels);
            }
        }
    }

    /// Adds one entry of a random kind.
    pub(super) fn entry(&mut self, at: &Path, levels: u32) {
        match self.random.within(0..20) {
            8..=12 if levels > 0 => {
                self.directory(at);
                self.entries(at, levels - 1);
            }
            13 | 14 => {
                let targets = ["a", "b", "nowhere", "/nowhere/x", "..", "c/a"];
                let target = self.one_of(&targets);
                self.symlink(at, Path::new(target));
            }
            15 | 16 if self.traits.has_hard_links && !self.files.is_empty() => self.hard_link(at),
            17 if self.traits.has_fifos => {
                self.steps.push(Step::Fifo(at.to_owned()));
                self.metadata(at, false);
            }
            18 if self.traits.has_devices => {
                let minor = self.one_of(&[3, 5]);
                self.steps.push(Step::Device(at.to_owned(), minor));
                self.metadata(at, false);
            }
            19 => {
                self.steps.push(Step::Socket(at.to_owned()));
                self.metadata(at, false);
            }
            _ => self.file(at),
        }
    }

    fn symlink(&mut self, at: &Path, target: &Path) {
        self.steps
            .push(Step::Symlink(at.to_owned(), target.to_owned()));
        self.metadata(at, false);
    }

    /// Adds a further name of one of the files so far.
    fn hard_link(&mut self, at: &Path) {
        let files = self.files.len() as u64;
        let old = usize::try_from(self.random.within(0..files)).expect("it is small");
        let old = self.files[old].clone();
        self.steps.push(Step::HardLink(at.to_owned(), old));
    }

    pub(super) fn file(&mut self, at: &Path) {
        if self.chance(4) {
            let bytes = self.one_of(&[1, 300_000, 5 << 20]);
            self.steps.push(Step::Hole(at.to_owned(), bytes));
        } else {
            let bytes = match self.random.within(0..100) {
                0 | 1 => (4 << 20) + 3,
                2..=4 => 1 << 20,
                _ => self.one_of(&SIZES),
            };
            let letter = self.one_of(&['x', 'y', 'z']);
            self.steps.push(Step::File(at.to_owned(), bytes, letter));
        }
        self.files.push(at.to_owned());
        self.metadata(at, false);
    }

    /// Adds the owners, the mode, the attributes, the ACL and the times of an entry.
    fn metadata(&mut self, at: &Path, is_directory: bool) {
        let mut steps = Vec::new();
        let path = at.to_owned();
        if self.traits.has_owners && self.chance(40) {
            let (user, group) = (self.one_of(&[0, 1, USER]), self.one_of(&[0, 2, USER]));
            steps.push(Step::Owners(path.clone(), user, group));
        }
        if self.chance(if is_directory { 40 } else { 60 }) {
            let mode = self.mode(is_directory);
            steps.push(Step::Mode(path.clone(), mode));
        }
        if self.chance(10) {
            let name = self.one_of(&["user.one", "user.two"]);
            let value = self.one_of(&["v", "w"]).to_owned();
            steps.push(Step::Attribute(path.clone(), name, value));
        }
        if self.traits.has_acls && self.chance(10) {
            steps.push(self.acl(at, ACL));
        }
        if self.traits.has_acls && is_directory && self.chance(10) {
            steps.push(self.acl(at, DEFAULT_ACL));
        }
        let seconds = self.one_of(&[1_000_000_000, 1_500_000_000, 1_500_000_001, -86_400]);
        let nanoseconds = self.one_of(&[0, 1, 999_999_999]);
        steps.push(Step::Times(path, seconds, nanoseconds));
        if is_directory {
            // Their order is reversed once more when the directories are finished.
            self.last.extend(steps.into_iter().rev());
        } else {
            self.steps.extend(steps);
        }
    }

    fn acl(&mut self, at: &Path, name: &'static str) -> Step {
        let user = self.one_of(&[1, 7]);
        // The owner keeps all rights: what it may not do is the matter of modes.
        let mut rights = [7; 5];
        for right in &mut rights[1..] {
            *right = self.one_of(&[0, 4, 5, 6, 7]);
        }
        acl(at, name, user, rights)
    }

    fn mode(&mut self, is_directory: bool) -> u32 {
        let is_locked = self.traits.has_locks && self.chance(25);
        match (is_directory, is_locked) {
            (true, true) => self.one_of(&[0o000, 0o555, 0o333, 0o400, 0o600]),
            (true, false) => self.one_of(&[0o755, 0o700, 0o2775, 0o1777, 0o2750, 0o775]),
            (false, true) => self.one_of(&[0o000, 0o222, 0o444, 0o400, 0o4555]),
            (false, false) => {
                self.one_of(&[0o644, 0o600, 0o755, 0o4755, 0o2755, 0o6711, 0o666, 0o664])
            }
        }
    }

    /// Makes the destination an older copy of the source: a copy with random changes.
    pub(super) fn older_copy(&mut self, source: &Path, at: &Path) {
        self.finish_directories();
        let made = self.steps.clone();
        self.steps
            .push(Step::Copy(source.to_owned(), at.to_owned()));
        self.files.clear();
        for step in &made {
            let Some(path) = step.made() else {
                continue;
            };
            let Ok(below) = path.strip_prefix(source) else {
                continue;
            };
            if below.as_os_str().is_empty() {
                continue;
            }
            let times = made.iter().find_map(|step| match step {
                Step::Times(of, seconds, nanoseconds) if of == path => {
                    Some((*seconds, *nanoseconds))
                }
                _ => None,
            });
            let path = at.join(below);
            let is_directory = matches!(step, Step::Directory(_));
            match self.random.within(0..20) {
                0 | 1 => self.steps.push(Step::Remove(path)),
                2 => {
                    self.steps.push(Step::Remove(path.clone()));
                    self.entry(&path, 1);
                    self.finish_directories();
                }
                3 | 4 => {
                    self.metadata(&path, is_directory);
                    self.finish_directories();
                }
                5 if is_directory => {
                    self.entry(&within(&path, b"only here"), 1);
                    self.finish_directories();
                }
                // Another target with the time of the old one.
                5..=8 if matches!(step, Step::Symlink(..)) => {
                    self.steps.push(Step::Remove(path.clone()));
                    self.steps.push(Step::Symlink(path.clone(), "b".into()));
                    let (seconds, nanoseconds) = times.unwrap_or((0, 0));
                    self.steps.push(Step::Times(path, seconds, nanoseconds));
                }
                5 | 6 if matches!(step, Step::File(..)) => {
                    let letter = self.one_of(&['x', 'y']);
                    self.steps.push(Step::File(path.clone(), 5, letter));
                    self.metadata(&path, false);
                }
                _ => {}
            }
        }
    }
}

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
