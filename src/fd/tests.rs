//! Descriptors of every kind, as far as one machine has them.

mod sink;
mod source;
mod target;

use std::{
    ffi::OsString,
    fs, io,
    os::fd::{FromRawFd, OwnedFd},
    path::Path,
    task::Waker,
};

use rustix::io::Errno;

use super::{PIPE_BYTES, close, duplicate};

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
