//! A pseudo-terminal whose keyboard is the test.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
};

use rustix::{
    fs::OFlags,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
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

    /// Types `keys` at the keyboard; `\x03` is ^C.
    pub fn types(&mut self, keys: &str) {
        self.keyboard
            .write_all(keys.as_bytes())
            .expect("a terminal takes keys");
    }
}
