//! The guard: the process above the worker, which kills what a dead worker left behind, and holds a command's stdin
//! open: a worker that dies does not end the command's input.
//!
//! A SIGKILL cannot be caught, so another process must kill what a killed worker has started. The guard uses no runtime
//! and no protocol, and next to nothing that could fail. Its second thread serves the hold on stdin, a third reaps
//! while it kills. It exits with the worker's status, or with 128+n if signal n killed the worker: so ssh reports a
//! SIGKILL on a host.
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
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use rustix::{
    io::{Errno, retry_on_intr},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, WaitOptions, getpid, set_child_subreaper, wait},
    stdio::{dup2_stdin, dup2_stdout},
};

use super::descendants;
use crate::{
    process,
    ssh::{explain::UNSTARTED_AGENT, stage::Status},
};

/// Runs the guard: `rdpipe --agent`.
pub(crate) fn main() -> ExitCode {
    let mut worker = Command::new("/proc/self/exe");
    worker.arg0("rdpipe").arg("--agent=worker");
    ExitCode::from(guard(&mut worker))
}

/// Runs `worker`, and kills every process that it left behind. Returns the worker's exit status, or 128+n if signal n
/// killed it.
pub(super) fn guard(worker: &mut Command) -> u8 {
    match watch(worker) {
        Ok(Status::Exited(code)) => code,
        Ok(Status::Signaled(number)) => number.saturating_add(128),
        Err(error) => {
            let _ = writeln!(io::stderr(), "{UNSTARTED_AGENT}: {error}");
            1
        }
    }
}

fn watch(worker: &mut Command) -> io::Result<Status> {
    // A descendant that loses its parent becomes a child of this process, even if it has left group and session.
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let keeper = Keeper::prepare(worker)?;
    let leaves = Arc::clone(&keeper.leaves);
    let null = null()?;
    let child = process::with_inherited_core_dumps(|| worker.spawn());
    let mut child = child.map_err(|error| unstarted(worker, &error))?;
    // Only the worker must hold the session's pipes: the controller then sees the end of the session when the worker
    // closes them.
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    let worker = Pid::from_child(&child);
    if let Err(error) = keeper.serve(worker) {
        // A worker whose guard is gone may look at its new parent, so it ends first.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    let status = loop {
        match retry_on_intr(|| wait(WaitOptions::empty()))? {
            Some((pid, status)) if pid == worker => {
                if let Some(status) = descendants::status_of(status) {
                    break status;
                }
            }
            _ => {}
        }
    };
    if has_children() && !leaves.load(Ordering::Relaxed) {
        end_all();
    }
    Ok(status)
}

/// Opens `/dev/null`.
pub(super) fn null() -> io::Result<File> {
    let null = File::options().read(true).write(true).open("/dev/null");
    null.map_err(|error| io::Error::new(error.kind(), format!("cannot open /dev/null: {error}")))
}

fn unstarted(worker: &Command, error: &io::Error) -> io::Error {
    let program = worker.get_program().to_string_lossy();
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "; is /proc mounted?",
        _ => "",
    };
    io::Error::new(
        error.kind(),
        format!("cannot run {program}: {error}{advice}"),
    )
}

/// Reaps the children that have exited. Returns true if a child is left that still runs.
fn has_children() -> bool {
    loop {
        match retry_on_intr(|| wait(WaitOptions::NOHANG)) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) => return error != Errno::CHILD,
        }
    }
}

fn end_all() {
    let (ended, is_over) = mpsc::channel();
    // While the sender is there, the processes count as not ended.
    let unended = ended.clone();
    let reaping = thread::Builder::new().spawn(move || {
        let _ = descendants::reap_all(|_, _| {});
        drop(ended);
    });
    // Without the thread, the processes are killed after the full time, and no one knows whether they have ended.
    let _unended = reaping.is_err().then_some(unended);
    if let Err(left) = descendants::end_all(&is_over) {
        let left = left.join(", ");
        let _ = writeln!(io::stderr(), "rdpipe: cannot kill {left}");
    }
}

/// The environment variable with the process of the guard and the numbers of the two pipes, for the worker. It is
/// removed for commands.
pub(super) const VARIABLE: &str = "RDPIPE_GUARD";

/// The message of the worker that the input has ended.
const RELEASE: i32 = -1;

/// The message of the worker that the processes that it leaves behind go on. Every other message is the number of a
/// descriptor to hold.
const LEAVE: i32 = -2;

/// The answer to [`LEAVE`].
const LEAVES: u8 = 2;

/// The guard's side of the hold.
pub(super) struct Keeper {
    requests: File,
    answers: File,
    /// Whether the processes that the worker leaves behind go on.
    leaves: Arc<AtomicBool>,
    /// The other ends of the two pipes, which the worker opens through `/proc`.
    _worker: (OwnedFd, OwnedFd),
}

impl Keeper {
    /// Makes the two pipes, and puts their numbers and this process into the environment of `worker`.
    pub(super) fn prepare(worker: &mut Command) -> io::Result<Self> {
        let (requests, to_guard) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from_guard, answers) = pipe_with(PipeFlags::CLOEXEC)?;
        let (to, from) = (to_guard.as_raw_fd(), from_guard.as_raw_fd());
        worker.env(VARIABLE, format!("{} {to} {from}", getpid()));
        Ok(Self {
            requests: requests.into(),
            answers: answers.into(),
            leaves: Arc::default(),
            _worker: (to_guard, from_guard),
        })
    }

    /// Carries out the worker's requests on a thread of its own, until this process exits.
    pub(super) fn serve(mut self, worker: Pid) -> io::Result<()> {
        let serve = move || {
            // All of `self` moves to this thread, with the ends that the worker has not opened yet.
            let keeper = &mut self;
            let mut held = None;
            let mut request = [0; 4];
            while keeper.requests.read_exact(&mut request).is_ok() {
                let request = i32::from_ne_bytes(request);
                let answer = if request == LEAVE {
                    keeper.leaves.store(true, Ordering::Relaxed);
                    LEAVES
                } else {
                    held = match request {
                        RELEASE => None,
                        descriptor => open(worker, descriptor, OpenOptions::new().write(true)).ok(),
                    };
                    u8::from(held.is_some())
                };
                if keeper.answers.write_all(&[answer]).is_err() {
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
pub(super) struct Hold {
    to_guard: File,
}

impl Hold {
    /// Makes the guard keep `pipe` open for writing, and waits until it does. Call this before the command is started.
    /// Returns none if there is no guard, or if the guard cannot open the pipe.
    pub(super) fn on(pipe: impl AsFd) -> Option<Self> {
        let (to_guard, mut from_guard) = request(pipe.as_fd().as_raw_fd())?;
        let mut answer = [0];
        from_guard.read_exact(&mut answer).ok()?;
        (answer == [1]).then_some(Self { to_guard })
    }

    /// Makes the guard close the pipe, so that the command sees the end of its input.
    pub(super) fn release(mut self) {
        // If the guard is gone, so is its descriptor.
        let _ = self.to_guard.write_all(&RELEASE.to_ne_bytes());
    }
}

/// Tells the guard that the processes that this worker leaves behind go on, and waits until the guard knows. Without a
/// guard nothing would end them.
pub(super) fn leave_processes() {
    if let Some((_, mut from_guard)) = request(LEAVE) {
        let mut answer = [0];
        // Before this answer there may be that to RELEASE.
        while answer != [LEAVES] && from_guard.read_exact(&mut answer).is_ok() {}
    }
}

/// Sends a request to the guard. Returns the pipes to it and from it.
fn request(number: i32) -> Option<(File, File)> {
    let (guard, to_guard, from_guard) = announced()?;
    let mut to_guard = open(guard, to_guard, OpenOptions::new().write(true)).ok()?;
    let from_guard = open(guard, from_guard, OpenOptions::new().read(true)).ok()?;
    to_guard.write_all(&number.to_ne_bytes()).ok()?;
    Some((to_guard, from_guard))
}

/// Returns the process of the guard, for the worker. Returns none if this process has no guard.
pub(super) fn guard_process() -> Option<Pid> {
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
