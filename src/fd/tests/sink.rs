use std::{
    fs,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    task::Poll,
};

use rustix::{
    fs::{Mode, OFlags, fcntl_getfl, open},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    pipe::pipe,
};
use tokio::io::AsyncWriteExt;

use super::{os_error, poll_once};
use crate::fd::Sink;

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
