//! Descriptors of every kind, as far as one machine has them.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt, lchown, symlink},
    },
    path::Path,
    task::{Poll, Waker},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, XattrFlags, fcntl_getfl, getxattr, mknodat, open, setxattr},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt::socket_send_buffer_size},
    pipe::{fcntl_getpipe_size, pipe},
    process::{Uid, geteuid},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::{
    OutputTarget, PIPE_BYTES, Sink, Source, close, duplicate,
    target::{TargetFacts, WriteMethod, try_open_in_place, write_method},
    temporary::{TemporaryFile, umask_in},
};

/// Polls once, outside the task: for what must be ready, or must not.
fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> std::task::Poll<T> {
    let mut cx = std::task::Context::from_waker(Waker::noop());
    std::pin::Pin::new(future).poll(&mut cx)
}

fn os_error(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// All names in a directory, hidden ones too.
fn names(directory: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Returns a descriptor that no process can have open: its number is above every limit of the kernel.
#[allow(unsafe_code)]
fn never_open() -> OwnedFd {
    // SAFETY: no open descriptor can have this number, so this never closes the descriptor of another owner.
    unsafe { OwnedFd::from_raw_fd(i32::MAX - 1) }
}

#[test]
fn the_error_of_close_is_reported() {
    let error = close(never_open()).unwrap_err();
    assert_eq!(os_error(&error), Some(Errno::BADF));
}

#[test]
fn a_closed_standard_stream_says_so() {
    use std::{mem::ManuallyDrop, os::fd::AsFd};
    let closed = ManuallyDrop::new(never_open());
    let wrong = rustix::fs::OFlags::WRONLY;
    let error = duplicate(closed.as_fd(), wrong).unwrap_err();
    let text = error.to_string();
    assert_eq!(text, "it is closed, or not open for reading");

    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let wrong = rustix::fs::OFlags::RDONLY;
    let error = duplicate(reader.as_fd(), wrong).unwrap_err();
    let text = error.to_string();
    assert_eq!(text, "it is closed, or not open for writing");
}

/// The argument for the capacity of a pipe.
#[test]
fn a_pipe_holds_two_chunks_of_the_default_size() {
    assert_eq!(PIPE_BYTES, 2 * crate::StreamConfig::default().chunk_bytes);
}

#[tokio::test]
async fn writes_a_file_and_closes_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for fsync in [false, true] {
        let file = fs::File::create(&path).unwrap();
        let mut sink = Sink::new(file.into(), "file").unwrap();
        sink.write_all(b"contents").await.unwrap();
        assert_eq!(sink.describe(), "file");
        sink.close(fsync).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
    }
}

#[tokio::test]
async fn devices_say_what_they_say() {
    let full = open("/dev/full", OFlags::WRONLY, Mode::empty()).unwrap();
    let mut sink = Sink::new(full, "/dev/full").unwrap();
    let error = sink.write_all(b"x").await.unwrap_err();
    assert_eq!(os_error(&error), Some(Errno::NOSPC));
    let null = open("/dev/null", OFlags::WRONLY, Mode::empty()).unwrap();
    let mut sink = Sink::new(null, "/dev/null").unwrap();
    sink.write_all(&[0; 10_000]).await.unwrap();
    sink.close(true).await.unwrap();
}

#[tokio::test]
async fn standard_output_stays_open() {
    let before = fcntl_getfl(io::stdout()).unwrap();
    let sink = Sink::stdout().unwrap();
    sink.close(false).await.unwrap();
    assert_eq!(fcntl_getfl(io::stdout()).unwrap(), before);
}

/// Fills a sink until it would wait, then reads everything from the other end.
async fn fill_and_empty(mut sink: Sink, reader: OwnedFd) {
    let chunk = vec![5; 100_000];
    // The first write is awaited: only then does the runtime receive the event that there is room.
    let mut written = sink.write(&chunk).await.unwrap();
    while let Poll::Ready(count) = poll_once(&mut Box::pin(sink.write(&chunk))) {
        written += count.unwrap();
    }
    let rest = vec![6; 3 << 20];
    let reading = tokio::task::spawn_blocking(move || {
        let mut read = Vec::new();
        fs::File::from(reader).read_to_end(&mut read).unwrap();
        read
    });
    sink.write_all(&rest).await.unwrap();
    sink.close(false).await.unwrap();
    let read = reading.await.unwrap();
    assert_eq!(read.len(), written + rest.len());
    assert!(read.ends_with(&rest));
}

#[tokio::test]
async fn a_full_pipe_is_pending_and_wakes() {
    let (reader, writer) = pipe().unwrap();
    fill_and_empty(Sink::new(writer, "pipe").unwrap(), reader).await;
}

#[tokio::test]
async fn a_full_shared_pipe_is_pending_and_wakes() {
    let (reader, writer) = pipe().unwrap();
    fill_and_empty(Sink::shared(writer).unwrap(), reader).await;
}

#[tokio::test]
async fn a_full_socket_is_pending_and_wakes() {
    let kind = SocketType::STREAM;
    let (here, there) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    fill_and_empty(Sink::new(here, "socket").unwrap(), there).await;
}

#[tokio::test]
async fn the_shared_description_stays_as_it_is() {
    let (_reader, writer) = pipe().unwrap();
    let before = fcntl_getfl(&writer).unwrap();
    let sink = Sink::new(writer.try_clone().unwrap(), "pipe").unwrap();
    assert!(
        fcntl_getfl(sink.as_fd())
            .unwrap()
            .contains(OFlags::NONBLOCK)
    );
    assert_eq!(fcntl_getfl(&writer).unwrap(), before);
}

#[tokio::test]
async fn a_reader_that_left_is_a_broken_pipe() {
    for shared in [false, true] {
        let (reader, writer) = pipe().unwrap();
        let mut sink = if shared {
            Sink::shared(writer).unwrap()
        } else {
            Sink::new(writer, "pipe").unwrap()
        };
        drop(reader);
        let error = sink.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

#[tokio::test]
async fn reads_a_file_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let bytes = vec![3; 300_000];
    fs::write(&path, &bytes).unwrap();
    let mut source = Source::open(&path).unwrap();
    let mut read = Vec::new();
    source.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, bytes);
    assert_eq!(source.describe(), path.display().to_string());
}

#[tokio::test]
async fn refuses_a_directory() {
    let error = Source::open(Path::new("/")).err().unwrap();
    assert_eq!(os_error(&error), Some(Errno::ISDIR));
}

#[tokio::test]
async fn reads_a_device_that_cannot_be_polled() {
    let mut source = Source::open(Path::new("/dev/zero")).unwrap();
    let mut buf = [1; 5000];
    source.read_exact(&mut buf).await.unwrap();
    assert_eq!(buf, [0; 5000]);
    let mut end = Source::open(Path::new("/dev/null")).unwrap();
    assert_eq!(end.read(&mut buf).await.unwrap(), 0);
}

#[tokio::test]
async fn an_idle_pipe_is_pending_and_wakes() {
    let (reader, writer) = pipe().unwrap();
    let before = fcntl_getfl(&reader).unwrap();
    let mut source = Source::new(reader).unwrap();
    let mut writer = fs::File::from(writer);
    let mut buf = [0; 8];
    // Twice, so that the second wait comes after a readiness that was used up.
    for word in [b"one", b"two"] {
        assert!(poll_once(&mut Box::pin(source.read(&mut buf))).is_pending());
        let (count, ()) = tokio::join!(source.read(&mut buf), async {
            tokio::task::yield_now().await;
            writer.write_all(word).unwrap();
        });
        assert_eq!(&buf[..count.unwrap()], word);
    }
    assert_eq!(fcntl_getfl(&source).unwrap(), before, "O_NONBLOCK was set");
    drop(writer);
    assert_eq!(source.read(&mut buf).await.unwrap(), 0);
}

#[tokio::test]
async fn standard_input_keeps_its_flags() {
    let before = fcntl_getfl(std::io::stdin()).unwrap();
    let source = Source::stdin().unwrap();
    assert_eq!(source.describe(), "standard input");
    assert_eq!(fcntl_getfl(std::io::stdin()).unwrap(), before);
    drop(source);
    assert!(fcntl_getfl(std::io::stdin()).is_ok(), "only ours is closed");
}

#[tokio::test]
async fn two_sources_can_share_a_description() {
    let (reader, writer) = pipe().unwrap();
    let mut first = Source::new(reader.try_clone().unwrap()).unwrap();
    let mut second = Source::new(reader).unwrap();
    let mut writer = fs::File::from(writer);
    let mut buf = [0; 3];
    writer.write_all(b"abc").unwrap();
    first.read_exact(&mut buf).await.unwrap();
    assert!(poll_once(&mut Box::pin(second.read(&mut buf))).is_pending());
    writer.write_all(b"def").unwrap();
    second.read_exact(&mut buf).await.unwrap();
    assert_eq!(&buf, b"def");
}

#[tokio::test]
async fn reads_a_socket() {
    let (here, there) = stream_pair();
    let mut source = Source::new(here).unwrap();
    let mut buf = [0; 8];
    assert!(poll_once(&mut Box::pin(source.read(&mut buf))).is_pending());
    rustix::io::write(&there, b"word").unwrap();
    assert_eq!(source.read(&mut buf).await.unwrap(), 4);
    drop(there);
    assert_eq!(source.read(&mut buf).await.unwrap(), 0);
}

/// tokio takes a hang-up for final. The second writer found the source spinning on it.
#[tokio::test]
async fn a_fifo_gets_a_second_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut source = Source::open(&path).unwrap();
    let mut buf = [0; 8];
    assert!(poll_once(&mut Box::pin(source.read(&mut buf))).is_pending());

    let mut first = fs::OpenOptions::new().write(true).open(&path).unwrap();
    first.write_all(b"one").unwrap();
    drop(first);
    assert_eq!(source.read(&mut buf).await.unwrap(), 3);
    let mut second = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Without tokio's budget, which would end the spinning now and then.
    let mut idle = Box::pin(tokio::task::unconstrained(source.read(&mut buf)));
    assert!(poll_once(&mut idle).is_pending());
    drop(idle);
    let (count, ()) = tokio::join!(source.read(&mut buf), async {
        tokio::task::yield_now().await;
        second.write_all(b"more").unwrap();
    });
    assert_eq!(count.unwrap(), 4);
}

#[tokio::test]
async fn enlarges_a_pipe() {
    let (reader, _writer) = pipe().unwrap();
    let small = fcntl_getpipe_size(&reader).unwrap();
    let source = Source::new(reader).unwrap();
    let size = fcntl_getpipe_size(source.as_fd()).unwrap();
    assert!(size == PIPE_BYTES || size == small, "{size}");
}

/// A sink does not set the buffer of a TCP socket: the kernel would no longer size it.
#[tokio::test]
async fn enlarges_the_send_buffer_of_a_unix_socket_only() {
    let (stdout, _reader) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let small = socket_send_buffer_size(&stdout).unwrap();
    let sink = Sink::new(stdout, "a socket").unwrap();
    assert!(socket_send_buffer_size(sink.as_fd()).unwrap() > small);

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let own = socket_send_buffer_size(&tcp).unwrap();
    let sink = Sink::new(tcp.into(), "a connection").unwrap();
    assert_eq!(socket_send_buffer_size(sink.as_fd()).unwrap(), own);
}

#[tokio::test]
async fn reads_into_memory_that_was_never_written() {
    let (reader, writer) = pipe().unwrap();
    rustix::io::write(&writer, b"abc").unwrap();
    let mut source = Source::new(reader).unwrap();
    let mut memory = [std::mem::MaybeUninit::uninit(); 8];
    let mut buf = ReadBuf::uninit(&mut memory);
    std::future::poll_fn(|cx| {
        tokio::io::AsyncRead::poll_read(std::pin::Pin::new(&mut source), cx, &mut buf)
    })
    .await
    .unwrap();
    assert_eq!(buf.filled(), b"abc");
}

fn stream_pair() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

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

/// The rule is the kernel's: with `fs.protected_symlinks`, `cat > /tmp/link` fails there too.
#[tokio::test]
async fn a_link_that_another_user_has_planted_is_not_followed() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can make a link of another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (link, file) = (directory.path().join("link"), directory.path().join("file"));
    symlink("file", &link).unwrap();
    lchown(&link, Some(65_534), None).unwrap();
    for mode in [0o777, 0o1755] {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        assert!(write(&link, b"not shared").await, "{mode:o}");
    }
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let refused = OutputTarget::create(&link).await.err().unwrap();
    assert_eq!(os_error(&refused), Some(Errno::ACCESS));
    assert_eq!(fs::read(&file).unwrap(), b"not shared");
    // A dangling link names no new file either.
    fs::remove_file(&file).unwrap();
    assert!(OutputTarget::create(&link).await.is_err());
    lchown(&link, Some(0), None).unwrap();
    assert!(write(&link, b"own").await);
    assert_eq!(fs::read(&file).unwrap(), b"own");
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
