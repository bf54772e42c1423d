//! Descriptors of every kind, as far as one machine has them.

mod target;

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::fd::{AsFd, FromRawFd, OwnedFd},
    path::Path,
    task::{Poll, Waker},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, mknodat, open},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    pipe::{fcntl_getpipe_size, pipe},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::{PIPE_BYTES, close, duplicate};
use crate::fd::{Sink, Source};

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
