use std::{
    fs,
    io::Write,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, fcntl_getfl, mknodat},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    pipe::{fcntl_getpipe_size, pipe},
};
use tokio::io::{AsyncReadExt, ReadBuf};

use super::{os_error, poll_once};
use crate::fd::{PIPE_BYTES, Source};

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
