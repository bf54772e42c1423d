//! The tests may run as root, whom no permission stops; so what depends on permissions is tested
//! as the pure function [`write_method`] too, and skipped aloud here.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, XattrFlags, getxattr, mknodat, setxattr},
    io::Errno,
    process::{Uid, geteuid},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{names, os_error, poll_once};
use crate::fd::{
    OutputTarget, Source,
    target::{TargetFacts, WriteMethod, try_open_in_place, write_method},
    temporary::{TemporaryFile, umask_in},
};

/// Writes `bytes` to `path` as the programs do. Whether it was written beside its target.
async fn write(path: &Path, bytes: &[u8]) -> bool {
    let mut target = OutputTarget::create(path).await.unwrap();
    let beside = target.is_beside();
    target.sink().write_all(bytes).await.unwrap();
    target.commit(true).await.unwrap();
    beside
}

#[tokio::test]
async fn makes_a_missing_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new");
    let mut target = OutputTarget::create(&path).await.unwrap();
    target.sink().write_all(b"bytes").await.unwrap();
    assert!(!path.exists(), "not before the commit");
    target.commit(false).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"bytes");
    assert_eq!(names(directory.path()), ["new"]);

    let shell = directory.path().join("shell");
    fs::File::create(&shell).unwrap();
    let mode = |path| fs::metadata(path).unwrap().mode();
    assert_eq!(mode(&path), mode(&shell), "the umask counts");
}

#[tokio::test]
async fn replaces_a_file_and_keeps_its_mode() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old");
    fs::write(&path, "old contents").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
    let before = fs::metadata(&path).unwrap();
    assert!(write(&path, b"new").await);
    let after = fs::metadata(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!((after.mode(), after.uid()), (before.mode(), before.uid()));
    assert_ne!(after.ino(), before.ino(), "it is another file");
    assert_eq!(names(directory.path()), ["old"]);
}

#[tokio::test]
async fn a_replaced_file_does_not_get_the_acl_of_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old");
    fs::write(&path, "old contents").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    // All rights for the owner, user 1, the group, the mask and others.
    let entries = [
        (1_u8, u32::MAX),
        (2, 1),
        (4, u32::MAX),
        (0x10, u32::MAX),
        (0x20, u32::MAX),
    ];
    let entries = entries.map(|(tag, id)| [&[tag, 0, 7, 0][..], &id.to_le_bytes()].concat());
    let acl = [&[2, 0, 0, 0][..], &entries.concat()].concat();
    let default = "system.posix_acl_default";
    if setxattr(directory.path(), default, &acl, XattrFlags::empty()).is_err() {
        eprintln!("SKIPPED: no ACLs on this file system");
        return;
    }
    assert!(write(&path, b"new").await);
    let found = getxattr(&path, "system.posix_acl_access", &mut [0; 100][..]);
    assert_eq!(found, Err(Errno::NODATA));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o664);
}

#[tokio::test]
async fn dropped_it_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("old");
    fs::write(&old, "old").unwrap();
    for path in [old.clone(), directory.path().join("missing")] {
        let mut target = OutputTarget::create(&path).await.unwrap();
        target.sink().write_all(b"lost").await.unwrap();
        drop(target);
    }
    assert_eq!(fs::read(&old).unwrap(), b"old");
    assert_eq!(names(directory.path()), ["old"]);
}

#[tokio::test]
async fn follows_symbolic_links() {
    let directory = tempfile::tempdir().unwrap();
    let (link, second) = (
        directory.path().join("link"),
        directory.path().join("second"),
    );
    symlink("second", &link).unwrap();
    symlink("file", &second).unwrap();
    // First the link is dangling, then it is not.
    for bytes in [b"one", b"two"] {
        assert!(write(&link, bytes).await);
        assert_eq!(fs::read(directory.path().join("file")).unwrap(), bytes);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("second"));
    }
    assert_eq!(names(directory.path()), ["file", "link", "second"]);

    symlink("loop", directory.path().join("loop")).unwrap();
    let error = OutputTarget::create(&directory.path().join("loop"))
        .await
        .err()
        .unwrap();
    assert_eq!(os_error(&error), Some(Errno::LOOP));
}

#[tokio::test]
async fn writes_in_place_what_cannot_be_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("a"), directory.path().join("b"));
    fs::write(&path, "long old contents").unwrap();
    fs::hard_link(&path, &other).unwrap();
    assert!(!write(&path, b"new").await);
    assert_eq!(fs::read(&other).unwrap(), b"new");

    let path = directory.path().join("setuid");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    assert!(!write(&path, b"new").await);

    let path = directory.path().join("attributes");
    fs::write(&path, "old").unwrap();
    match setxattr(&path, "user.note", b"keep me", XattrFlags::empty()) {
        Ok(()) => assert!(!write(&path, b"new").await),
        Err(error) => eprintln!("SKIPPED: no extended attributes here ({error})"),
    }
}

#[tokio::test]
async fn writes_devices_and_links_of_proc() {
    assert!(!write(Path::new("/dev/null"), b"bytes").await);
    let mut full = OutputTarget::create(Path::new("/dev/full")).await.unwrap();
    let error = full.sink().write_all(b"x").await.unwrap_err();
    assert_eq!(os_error(&error), Some(Errno::NOSPC));

    // What /dev/stdout is: a link that says "pipe:[42]", or the path of a plain file.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let number = writer.as_raw_fd();
    assert!(!write(Path::new(&format!("/proc/self/fd/{number}")), b"bytes").await);
    let mut buf = [0; 5];
    let mut source = Source::new(reader).unwrap();
    source.read_exact(&mut buf).await.unwrap();
    assert_eq!(&buf, b"bytes");

    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "longer than that").unwrap();
    let number = file.as_file().as_raw_fd();
    assert!(!write(Path::new(&format!("/dev/fd/{number}")), b"short").await);
    assert_eq!(fs::read(file.path()).unwrap(), b"short");
}

#[tokio::test]
async fn refuses_directories() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path().into(), directory.path().join("missing/")] {
        let error = OutputTarget::create(&path).await.err().unwrap();
        assert_eq!(os_error(&error), Some(Errno::ISDIR), "{path:?}");
    }
    let nowhere = directory.path().join("missing/file");
    let error = OutputTarget::create(&nowhere).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

#[tokio::test]
async fn permissions_count() {
    if geteuid().is_root() {
        eprintln!("SKIPPED: root may write everything");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let path = directory.path().join("read-only");
    fs::write(&path, "old").unwrap();
    set(&path, 0o444);
    let error = OutputTarget::create(&path).await.err().unwrap();
    assert_eq!(os_error(&error), Some(Errno::ACCESS));
    assert_eq!(fs::read(&path).unwrap(), b"old");

    set(&path, 0o644);
    set(directory.path(), 0o555);
    let beside = write(&path, b"new").await;
    let missing = OutputTarget::create(&directory.path().join("missing")).await;
    set(directory.path(), 0o755);
    assert!(!beside, "nothing can be created in the directory");
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(os_error(&missing.err().unwrap()), Some(Errno::ACCESS));
}

#[tokio::test]
async fn waits_for_the_reader_of_a_fifo() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(
        try_open_in_place(&path, OFlags::TRUNC).unwrap().is_none(),
        "the FIFO has no reader"
    );
    let mut creating = Box::pin(OutputTarget::create(&path));
    assert!(poll_once(&mut creating).is_pending());
    let mut source = Source::open(&path).unwrap();
    let mut target = creating.await.unwrap();
    assert!(!target.is_beside());
    target.sink().write_all(b"bytes").await.unwrap();
    target.commit(true).await.unwrap();
    let mut read = Vec::new();
    source.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, b"bytes");
}

#[tokio::test]
async fn a_target_that_changes_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    // A plain file that appears is replaced.
    let mut target = OutputTarget::create(&path).await.unwrap();
    target.sink().write_all(b"ours").await.unwrap();
    fs::write(&path, "theirs").unwrap();
    target.commit(false).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ours");
    // One that vanishes is made.
    let target = OutputTarget::create(&path).await.unwrap();
    fs::remove_file(&path).unwrap();
    target.commit(false).await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    // Whatever else it has become stays.
    let target = OutputTarget::create(&path).await.unwrap();
    fs::remove_file(&path).unwrap();
    symlink("elsewhere", &path).unwrap();
    let error = target.commit(false).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(names(directory.path()), ["file"]);
    assert_eq!(fs::read_link(&path).unwrap(), Path::new("elsewhere"));
}

/// As on a file system without `O_TMPFILE`.
fn named(directory: &Path, target: &OsStr) -> (TemporaryFile, OwnedFd) {
    let directory = fs::File::open(directory).unwrap().into();
    TemporaryFile::create_named(directory, target, Mode::RUSR | Mode::WUSR).unwrap()
}

#[test]
fn a_named_temporary_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let long = "n".repeat(255);
    for target in ["file", &long] {
        let path = directory.path().join(target);
        let (temporary, _file) = named(directory.path(), target.as_ref());
        let name = names(directory.path()).remove(0).into_string().unwrap();
        assert!(name.starts_with('.') && name.contains(".rdpipe-"), "{name}");
        assert_eq!(
            path.with_file_name(&name).metadata().unwrap().mode() & 0o777,
            0o600
        );
        drop(temporary);
        assert!(names(directory.path()).is_empty());

        for bytes in [b"one", b"two"] {
            let (temporary, file) = named(directory.path(), target.as_ref());
            rustix::io::write(&file, bytes).unwrap();
            temporary
                .publish(file.as_fd(), target.as_ref(), true)
                .unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
            assert_eq!(names(directory.path()), [target]);
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn how_an_existing_target_is_written() {
    let (us, them) = (Uid::from_raw(1000), Uid::from_raw(1001));
    let plain = TargetFacts {
        file_type: FileType::RegularFile,
        links: 1,
        mode: Mode::from_raw_mode(0o644),
        owner: us,
        attributes: Vec::new(),
        is_mounted: false,
        is_append_only: false,
    };
    let but = |change: fn(&mut TargetFacts)| {
        let mut facts = plain.clone();
        change(&mut facts);
        facts
    };
    let table = [
        (plain.clone(), us, WriteMethod::Beside),
        (plain.clone(), Uid::ROOT, WriteMethod::Beside),
        (plain.clone(), them, WriteMethod::InPlace),
        (
            but(|f| f.file_type = FileType::Fifo),
            us,
            WriteMethod::InPlace,
        ),
        (
            but(|f| f.file_type = FileType::BlockDevice),
            Uid::ROOT,
            WriteMethod::InPlace,
        ),
        (but(|f| f.links = 2), us, WriteMethod::InPlace),
        (but(|f| f.links = 0), us, WriteMethod::InPlace),
        (but(|f| f.mode |= Mode::SUID), us, WriteMethod::InPlace),
        (but(|f| f.mode |= Mode::SGID), us, WriteMethod::InPlace),
        (but(|f| f.mode |= Mode::SVTX), us, WriteMethod::InPlace),
        (
            but(|f| f.attributes = b"security.selinux\0".to_vec()),
            us,
            WriteMethod::Beside,
        ),
        (
            but(|f| f.attributes = b"system.posix_acl_access\0".to_vec()),
            us,
            WriteMethod::InPlace,
        ),
        (
            but(|f| f.attributes = b"security.selinux\0user.x\0".to_vec()),
            us,
            WriteMethod::InPlace,
        ),
        (
            but(|f| f.is_mounted = true),
            Uid::ROOT,
            WriteMethod::InPlace,
        ),
        (
            but(|f| f.is_append_only = true),
            Uid::ROOT,
            WriteMethod::InPlace,
        ),
    ];
    for (facts, caller, expected) in table {
        assert_eq!(
            write_method(&facts, caller),
            expected,
            "{facts:?} for {caller:?}"
        );
    }
}

#[test]
fn reads_the_umask() {
    let status = "Name:\tx\nUmask:\t0027\nState:\tR\n";
    assert_eq!(umask_in(status), Some(Mode::from_raw_mode(0o027)));
    assert_eq!(umask_in("Name:\tx\n"), None);
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert!(umask_in(&own).is_some());
}
