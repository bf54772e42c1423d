//! The guard's hold on a command's stdin: a worker that dies does not end the command's input.
//!
//! When a worker is killed the kernel closes its pipes, and the command would see an end of file: `cat > copy`
//! would succeed with half its input before the guard kills it. So the guard keeps the writing end open as well,
//! until the worker reports that the input has ended and is verified.
//!
//! Worker and guard exchange messages over two pipes of the guard, which the worker opens through `/proc`. If
//! `/proc` does not allow that there is no hold, and the guard must kill the command before it acts on the end of
//! file.

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
    process::{Pid, getpid},
};

/// The environment variable with the process of the guard and the numbers of the two pipes, for the worker. It is removed for commands.
pub(in crate::ssh::agent) const VARIABLE: &str = "RDPIPE_GUARD";

/// The message of the worker that the input has ended. Every other message is the number of a descriptor to hold.
const RELEASE: i32 = -1;

/// The guard's side of the hold.
pub(in crate::ssh::agent) struct Keeper {
    requests: File,
    answers: File,
    /// The other ends of the two pipes, which the worker opens through `/proc`.
    _worker: (OwnedFd, OwnedFd),
}

impl Keeper {
    /// Makes the two pipes, and puts their numbers and this process into the environment of `worker`.
    pub(in crate::ssh::agent) fn prepare(worker: &mut Command) -> io::Result<Self> {
        let (requests, to_guard) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from_guard, answers) = pipe_with(PipeFlags::CLOEXEC)?;
        let (to, from) = (to_guard.as_raw_fd(), from_guard.as_raw_fd());
        worker.env(VARIABLE, format!("{} {to} {from}", getpid()));
        Ok(Self {
            requests: requests.into(),
            answers: answers.into(),
            _worker: (to_guard, from_guard),
        })
    }

    /// Carries out the worker's requests on a thread of its own, until this process exits.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot start a thread.
    pub(in crate::ssh::agent) fn serve(mut self, worker: Pid) -> io::Result<()> {
        let serve = move || {
            // All of `self` moves to this thread, with the ends that the worker has not opened yet.
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
            // The loop ends only if the pipes fail. The descriptor is held until then.
            drop(held);
        };
        let thread = thread::Builder::new().name("hold".to_owned());
        thread.spawn(serve).map(drop)
    }
}

/// The worker's side of the hold. If it is dropped without [`release`](Self::release), the guard keeps the pipe open.
pub(in crate::ssh::agent) struct Hold {
    to_guard: File,
}

impl Hold {
    /// Makes the guard keep `pipe` open for writing, and waits until it does. Call this before the command is started.
    /// Returns none if there is no guard, or if the guard cannot open the pipe.
    pub(in crate::ssh::agent) fn on(pipe: impl AsFd) -> Option<Self> {
        let (guard, to_guard, from_guard) = announced()?;
        let mut to_guard = open(guard, to_guard, OpenOptions::new().write(true)).ok()?;
        let mut from_guard = open(guard, from_guard, OpenOptions::new().read(true)).ok()?;
        to_guard
            .write_all(&pipe.as_fd().as_raw_fd().to_ne_bytes())
            .ok()?;
        let mut answer = [0];
        from_guard.read_exact(&mut answer).ok()?;
        (answer == [1]).then_some(Self { to_guard })
    }

    /// Makes the guard close the pipe, so that the command sees the end of its input.
    pub(in crate::ssh::agent) fn release(mut self) {
        // If the guard is gone, so is its descriptor.
        let _ = self.to_guard.write_all(&RELEASE.to_ne_bytes());
    }
}

/// Returns the process of the guard, for the worker. Returns none if this process has no guard.
pub(in crate::ssh::agent) fn guard() -> Option<Pid> {
    announced().map(|(guard, _, _)| guard)
}

/// Returns the process of the guard and its two descriptors, from the environment.
fn announced() -> Option<(Pid, i32, i32)> {
    let numbers = env::var(VARIABLE).ok()?;
    let mut numbers = numbers.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some((Pid::from_raw(next()?)?, next()?, next()?))
}

/// Opens a pipe of another process through `/proc`.
fn open(process: Pid, descriptor: i32, options: &OpenOptions) -> io::Result<File> {
    let number = process.as_raw_nonzero();
    options.open(Path::new("/proc").join(format!("{number}/fd/{descriptor}")))
}
