//! The guard's hold on a command's stdin, so that a worker that dies does not end its input.
//!
//! When a worker is killed the kernel closes its pipes, and the command would see an end of file:
//! `cat > copy` would be happy with half its input before the guard comes to kill it. So the guard has
//! the writing end open as well, until the worker says that the input has truly ended.
//!
//! The two speak over two pipes of the guard's, which the worker opens through `/proc`. Where that
//! cannot be done there is no hold, and the guard must be quicker than the command.

use std::{
    env,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    process::Command,
    thread,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{Pid, getppid},
};

/// Where the worker finds the numbers of the two pipes. Commands do not get to see it.
pub(in crate::ssh::agent) const VARIABLE: &str = "RDPIPE_GUARD";

/// What the worker sends instead of a descriptor when the input has ended.
const RELEASE: i32 = -1;

/// The guard's side.
pub(in crate::ssh::agent) struct Keeper {
    requests: File,
    answers: File,
    /// The ends that the worker opens.
    _worker: (OwnedFd, OwnedFd),
}

impl Keeper {
    /// Makes the pipes, and tells `worker` of them.
    pub(in crate::ssh::agent) fn prepare(worker: &mut Command) -> io::Result<Self> {
        let (requests, to_guard) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from_guard, answers) = pipe_with(PipeFlags::CLOEXEC)?;
        let numbers = format!("{} {}", to_guard.as_raw_fd(), from_guard.as_raw_fd());
        worker.env(VARIABLE, numbers);
        Ok(Self {
            requests: requests.into(),
            answers: answers.into(),
            _worker: (to_guard, from_guard),
        })
    }

    /// Does what the worker asks for, on a thread of its own, for as long as this process lives.
    pub(in crate::ssh::agent) fn serve(mut self, worker: Pid) {
        thread::spawn(move || {
            // All of it moves here: the worker opens its ends later.
            let keeper = &mut self;
            let mut held = None;
            let mut request = [0; 4];
            while keeper.requests.read_exact(&mut request).is_ok() {
                held = match i32::from_ne_bytes(request) {
                    RELEASE => None,
                    descriptor => open(worker, descriptor, OpenOptions::new().write(true)).ok(),
                };
                let is_held = [u8::from(held.is_some())];
                if keeper.answers.write_all(&is_held).is_err() {
                    break;
                }
            }
            // Never reached while the guard lives, and then no process reads any more.
            drop(held);
        });
    }
}

/// The worker's side. Dropped without [`release`](Self::release), the guard holds on.
pub(in crate::ssh::agent) struct Hold {
    to_guard: File,
}

impl Hold {
    /// Has the guard keep `pipe` open for writing, before anybody reads from it. None where there is
    /// no guard, or it cannot.
    pub(in crate::ssh::agent) fn on(pipe: impl AsFd) -> Option<Self> {
        let numbers = env::var(VARIABLE).ok()?;
        let (to_guard, from_guard) = numbers.split_once(' ')?;
        let guard = getppid()?;
        let mut to_guard = open(
            guard,
            to_guard.parse().ok()?,
            OpenOptions::new().write(true),
        )
        .ok()?;
        let mut from_guard = open(
            guard,
            from_guard.parse().ok()?,
            OpenOptions::new().read(true),
        )
        .ok()?;
        to_guard
            .write_all(&pipe.as_fd().as_raw_fd().to_ne_bytes())
            .ok()?;
        let mut answer = [0];
        from_guard.read_exact(&mut answer).ok()?;
        (answer == [1]).then_some(Self { to_guard })
    }

    /// Lets the command see the end of its input.
    pub(in crate::ssh::agent) fn release(mut self) {
        // A guard that is gone holds nothing.
        let _ = self.to_guard.write_all(&RELEASE.to_ne_bytes());
    }
}

/// Opens another process's pipe.
fn open(process: Pid, descriptor: i32, options: &OpenOptions) -> io::Result<File> {
    let number = process.as_raw_nonzero();
    options.open(Path::new("/proc").join(format!("{number}/fd/{descriptor}")))
}
