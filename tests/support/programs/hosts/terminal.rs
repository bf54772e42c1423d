//! A pseudo-terminal whose keyboard is the test.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
};

use rustix::{
    fs::OFlags,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Action, tcflow},
};

/// Both ends of a pseudo-terminal. Dropping them hangs up the terminal.
pub struct Terminal {
    keyboard: File,
    inside: File,
}

impl Terminal {
    pub fn new() -> Self {
        let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let outside: OwnedFd = outside.expect("a terminal");
        grantpt(&outside).expect("it is ours");
        unlockpt(&outside).expect("it is ours");
        let name = ptsname(&outside, Vec::new()).expect("it has a name");
        let inside = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(i32::try_from(OFlags::NOCTTY.bits()).expect("a small number"))
            .open(std::ffi::OsStr::from_bytes(name.as_bytes()))
            .expect("it is ours");
        Self {
            keyboard: File::from(outside),
            inside,
        }
    }

    /// Returns the end for a program, as its stdin or controlling terminal.
    pub fn inside(&self) -> File {
        self.inside.try_clone().expect("a descriptor")
    }

    /// Reads what programs show on the terminal, up to `words`. Blocks if they show nothing more.
    pub fn shows(&mut self, words: &str) {
        let mut shown = String::new();
        let mut buffer = [0; 1024];
        while !shown.contains(words) {
            let count = self.keyboard.read(&mut buffer).expect("an open terminal");
            shown += &String::from_utf8_lossy(&buffer[..count]);
        }
    }

    /// Stops the output of programs, as ^S does, or continues it.
    pub fn stop(&self, is_stopped: bool) {
        let action = if is_stopped {
            Action::OOff
        } else {
            Action::OOn
        };
        tcflow(&self.inside, action).expect("a terminal");
    }

    /// Types `keys` at the keyboard; `\x03` is ^C.
    pub fn types(&mut self, keys: &str) {
        self.keyboard
            .write_all(keys.as_bytes())
            .expect("a terminal takes keys");
    }
}
