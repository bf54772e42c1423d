//! Trees of files to copy: small plain ones, and one with everything nasty that a file system can hold.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, PermissionsExt, chown, symlink},
        net::UnixListener,
    },
    path::Path,
    process::Command,
};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lsetxattr, makedev, mknodat,
    utimensat,
};

use crate::support::{is_full, random::random_bytes};

/// Names that programs trip over: on a terminal, in a list of lines, on a command line, in a pattern.
pub(crate) const NAMES: &[&[u8]] = &[
    b"new\nline",
    b"\n",
    b"not utf-8 \xff\xfe\x80",
    b" leading and trailing ",
    b"-n",
    b"--delete",
    b"*",
    b"[a-z]?",
    b"!not",
    b"#comment",
    b"a:b",
    b"back\\slash",
    b"quotes '\"`$HOME",
    b"bell\x07 escape\x1b[2J\x1b]0;title\x07 return\r",
    b"\xe2\x80\xaeright to left",
    "grüße ☃".as_bytes(),
    b".hidden",
    b"...",
    b"~",
    b".rdcp",
];

/// Returns true if the tests run as root, which alone can make owners, devices and files that it cannot read.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the number of small files in the nasty tree.
pub(crate) fn small_files() -> usize {
    if is_full() { 100_000 } else { 400 }
}

/// Makes the directory `at` with everything nasty in it, and `small_files` files of 4 KiB.
pub(crate) fn nasty(at: &Path, small_files: usize) {
    let parts: [Part; 10] = [
        ("names", names),
        ("deep", deep),
        ("links", links),
        ("hard", hard_links),
        ("modes", modes),
        ("special", special_files),
        ("holes", holes),
        ("attributes", attributes),
        ("sizes", sizes),
        ("empty", empty),
    ];
    for (name, make) in parts {
        let part = at.join(name);
        fs::create_dir_all(&part).expect("a directory");
        make(&part);
    }
    small(&at.join("small"), small_files, 4096);
    // Last, because everything above changes the times of directories.
    times(&at.join("times"));
    stamp(at, 1_000_000_007, 7);
}

/// Makes the directory `at` with `count` files of `bytes` bytes, a hundred in each directory.
pub(crate) fn small(at: &Path, count: usize, bytes: usize) {
    let content = random_bytes(bytes + count);
    fs::create_dir_all(at).expect("a directory");
    for number in 0..count {
        let folder = at.join(format!("{:04}", number / 100));
        if number % 100 == 0 {
            fs::create_dir(&folder).expect("a directory");
        }
        let piece = &content[number..number + bytes];
        fs::write(folder.join(format!("file {number}")), piece).expect("a file");
    }
}

/// Writes a file of `bytes` bytes in which no two blocks of 4 KiB are alike.
pub(crate) fn large(at: &Path, bytes: u64) {
    const BLOCK: usize = 4096;
    let mut piece = random_bytes(256 * BLOCK);
    let mut file = File::create(at).expect("a file");
    let mut written = 0;
    while written < bytes {
        for (block, number) in piece.chunks_exact_mut(BLOCK).zip(0_u64..) {
            let number = written / BLOCK as u64 + number;
            block[..8].copy_from_slice(&number.to_le_bytes());
        }
        let left = usize::try_from(bytes - written).unwrap_or(usize::MAX);
        let count = piece.len().min(left);
        file.write_all(&piece[..count]).expect("space for a file");
        written += count as u64;
    }
}

/// Sets both times of an entry; a link is not followed.
pub(crate) fn stamp(at: &Path, seconds: i64, nanoseconds: u32) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.into(),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}

/// Sets the permission bits.
pub(crate) fn mode(at: &Path, mode: u32) {
    fs::set_permissions(at, Permissions::from_mode(mode)).expect("it is ours");
}

/// A part of the nasty tree: its name, and what makes it in an empty directory.
type Part = (&'static str, fn(&Path));

fn names(at: &Path) {
    for name in NAMES {
        let path = at.join(OsStr::from_bytes(name));
        fs::write(path, name).expect("a file");
    }
    let longest = "x".repeat(255);
    fs::write(at.join(&longest), b"the longest name").expect("a file");
    let folder = at.join(OsStr::from_bytes(b"in a folder \xff\n"));
    fs::create_dir(&folder).expect("a directory");
    fs::write(folder.join(&longest), b"again").expect("a file");
    let folder = at.join("y".repeat(255));
    fs::create_dir(&folder).expect("a directory");
    fs::write(folder.join("short"), b"in a long one").expect("a file");
    // A large file with the longest name: a temporary name that is longer cannot be made.
    large(&at.join("z".repeat(255)), (3 << 20) + 1);
}

fn deep(at: &Path) {
    let mut path = at.to_owned();
    for level in 0..60 {
        path.push(format!("level {level}"));
        fs::create_dir(&path).expect("a directory");
        if level % 10 == 9 {
            fs::write(path.join("leaf"), format!("at level {level}")).expect("a file");
        }
    }
}

fn links(at: &Path) {
    let long = "./".repeat(2000) + "x";
    let targets: [(&str, &[u8]); 9] = [
        ("dangling", b"/no/such/file"),
        ("file", b"../names/*"),
        ("directory", b"../deep"),
        ("parent", b".."),
        ("to itself", b"to itself"),
        ("bytes", b"\xff\n\x1b[0m"),
        ("root", b"/"),
        ("here", b"."),
        ("long", long.as_bytes()),
    ];
    for (name, target) in targets {
        symlink(OsStr::from_bytes(target), at.join(name)).expect("a link");
    }
    stamp(&at.join("dangling"), 1_111_111_111, 1);
    if is_root() {
        std::os::unix::fs::lchown(at.join("root"), Some(3), Some(54_321)).expect("we are root");
    }
}

fn hard_links(at: &Path) {
    for folder in ["a", "b", "c/d"] {
        fs::create_dir_all(at.join(folder)).expect("a directory");
    }
    let link = |from: &str, to: &str| fs::hard_link(at.join(from), at.join(to)).expect("a link");
    fs::write(at.join("b/one"), b"a file with four names").expect("a file");
    link("b/one", "a/two");
    link("b/one", "c/d/three");
    link("b/one", "four");
    large(&at.join("c/large"), (5 << 20) + 3);
    link("c/large", "a/large");
    symlink("one", at.join("b/symbolic")).expect("a link");
    link("b/symbolic", "c/symbolic");
    fs::write(at.join("empty"), b"").expect("a file");
    link("empty", "c/d/empty");
}

fn modes(at: &Path) {
    for bits in [0o4755, 0o2755, 0o6711, 0o400, 0o444, 0o777, 0o666, 0o1644] {
        let path = at.join(format!("{bits:o}"));
        fs::write(&path, b"#!/bin/sh\n").expect("a file");
        mode(&path, bits);
    }
    for bits in [0o1777, 0o2775, 0o700, 0o555] {
        let path = at.join(format!("directory {bits:o}"));
        fs::create_dir(&path).expect("a directory");
        fs::write(path.join("inside"), b"inside").expect("a file");
        mode(&path, bits);
    }
    if !is_root() {
        return;
    }
    fs::write(at.join("none"), b"only root reads this").expect("a file");
    mode(&at.join("none"), 0);
    fs::create_dir(at.join("shut")).expect("a directory");
    fs::write(at.join("shut/inside"), b"only root comes here").expect("a file");
    mode(&at.join("shut"), 0);
    for (name, owners) in [
        ("daemon's", (1, 1)),
        ("nameless", (12_345, 54_321)),
        ("setuid", (12_345, 1)),
    ] {
        let path = at.join(name);
        fs::write(&path, name).expect("a file");
        chown(&path, Some(owners.0), Some(owners.1)).expect("we are root");
    }
    // A change of the owner clears this bit, so the owner comes first.
    mode(&at.join("setuid"), 0o4755);
}

fn special_files(at: &Path) {
    let node = |name: &str, kind: FileType, device: u64| {
        let mode = Mode::from_raw_mode(0o640);
        mknodat(CWD, at.join(name), kind, mode, device)
    };
    node("fifo", FileType::Fifo, 0).expect("a FIFO");
    // The listener ends; its name stays.
    UnixListener::bind(at.join("socket")).expect("a socket");
    if is_root() {
        let made = node("null", FileType::CharacterDevice, makedev(1, 3));
        let made = made.and_then(|()| node("loop", FileType::BlockDevice, makedev(7, 200)));
        // Root of a container may not make devices.
        if made.is_err() {
            println!("SKIPPED in part: no devices: {made:?}");
        }
    }
}

fn holes(at: &Path) {
    let block = random_bytes(64 << 10);
    let files: [(&str, u64, &[u64]); 5] = [
        ("all hole", 3_000_001, &[]),
        ("begins with data", 20 << 20, &[0]),
        ("data in the middle", 20 << 20, &[7 << 20, 9 << 20]),
        ("ends with data", (20 << 20) + (64 << 10), &[20 << 20]),
        (
            "many holes",
            8 << 20,
            &[0, 1 << 20, 3 << 20, 5 << 20, 6 << 20],
        ),
    ];
    for (name, size, data) in files {
        let file = File::create(at.join(name)).expect("a file");
        file.set_len(size).expect("a size");
        for offset in data {
            file.write_all_at(&block, *offset).expect("space");
        }
    }
    fs::write(at.join("zeros that are no hole"), vec![0; 2 << 20]).expect("a file");
}

fn attributes(at: &Path) {
    let set = |name: &str, attribute: &str, value: &[u8]| {
        lsetxattr(at.join(name), attribute, value, XattrFlags::empty()).expect("an attribute");
    };
    fs::create_dir(at.join("directory")).expect("a directory");
    for name in ["file", "acl", "many"] {
        fs::write(at.join(name), name).expect("a file");
    }
    set("file", "user.text", b"some text");
    set("file", "user.binary", b"\0\xff\n\0");
    set("file", "user.empty", b"");
    set("directory", "user.of a directory", b"yes");
    for number in 0..30 {
        set("many", &format!("user.number {number}"), &[b'v'; 60]);
    }
    if is_root() {
        set("file", "trusted.root", b"only root sees this");
    }
    let setfacl = |arguments: &[&str]| {
        let status = Command::new("setfacl")
            .args(arguments)
            .current_dir(at)
            .status();
        assert!(status.expect("setfacl").success(), "{arguments:?}");
    };
    setfacl(&["-m", "u:1:rw,g:3:r,m::rw", "acl"]);
    setfacl(&["-m", "u:2:rwx", "-d", "-m", "g:12345:rx", "directory"]);
    fs::write(at.join("directory/inherits"), b"an ACL").expect("a file");
}

fn sizes(at: &Path) {
    // Both sides of each size at which a copy could change its method.
    for shift in [0, 12, 16, 17, 18, 19, 20, 21, 23] {
        for bytes in [(1 << shift) - 1, 1 << shift, (1 << shift) + 1] {
            large(&at.join(format!("{bytes} bytes")), bytes);
        }
    }
}

fn empty(at: &Path) {
    for path in ["one", "two/three/four", "two/five"] {
        fs::create_dir_all(at.join(path)).expect("a directory");
    }
    stamp(&at.join("one"), 86_400, 123_456_789);
}

fn times(at: &Path) {
    fs::create_dir(at).expect("a directory");
    let times = [
        ("nanoseconds", 1_234_567_890, 123_456_789),
        ("last nanosecond", 1_700_000_000, 999_999_999),
        ("epoch", 0, 0),
        ("before the epoch", -86_400, 500_000_001),
        ("later than 2038", 4_000_000_000, 1),
    ];
    for (name, seconds, nanoseconds) in times {
        let path = at.join(name);
        fs::write(&path, name).expect("a file");
        stamp(&path, seconds, nanoseconds);
    }
    stamp(at, 1_000_000_000, 1);
}
