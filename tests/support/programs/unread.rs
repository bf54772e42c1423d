//! A stderr that is not read, as that of a program behind a pager or on a terminal after ^S.

use std::{
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    process::Stdio,
    thread::{self, JoinHandle},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{Errno, write},
    pipe::{PipeFlags, pipe_with},
};

/// A pipe that a program has as its stderr, and that is read only when the test calls [`read`](Self::read).
pub struct Unread {
    reader: OwnedFd,
    /// The bytes that were in the pipe before the program wrote.
    before: usize,
}

impl Unread {
    /// Returns an empty pipe, and its end for the program.
    pub fn empty() -> (Self, Stdio) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let before = 0;
        (Self { reader, before }, writer.into())
    }

    /// Returns a pipe that takes no byte more until it is read, and its end for the program.
    pub fn full() -> (Self, Stdio) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let flags = fcntl_getfl(&writer).expect("an open pipe");
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("an open pipe");
        let mut before = 0;
        loop {
            match write(&writer, &[b'.'; 4096]) {
                Ok(count) => before += count,
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error}"),
            }
        }
        fcntl_setfl(&writer, flags).expect("an open pipe");
        (Self { reader, before }, writer.into())
    }

    /// Reads the pipe to its end on a thread. The result is what the program wrote.
    pub fn read(self) -> JoinHandle<String> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = File::from(self.reader).read_to_end(&mut bytes);
            read.expect("a pipe can be read");
            String::from_utf8_lossy(&bytes[self.before..]).into_owned()
        })
    }
}
