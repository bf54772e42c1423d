//! The option `-f`: the program starts itself once more, waits until that process forwards connections, and leaves it in
//! the background. The process tells so by a byte on its stdout, which nothing else uses.

use std::{
    env,
    fs::File,
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Context;
use rustix::{
    process::setsid,
    stdio::{dup2_stderr, dup2_stdin},
};

use crate::{
    cli::shared::{message::Console, run::Exit},
    fd::EntryIdentity,
    process::close_stdout,
};

/// Starts the program once more, and waits until it is ready or has ended.
pub(super) fn start() -> anyhow::Result<Exit> {
    let own = env::current_exe().context("cannot find the path of the running program")?;
    let mut words = env::args_os();
    let mut command = Command::new(own);
    command.arg0(words.next().unwrap_or_default());
    command.arg("--in-background").args(words);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process in the background")?;
    let mut stdout = child.stdout.take().context("the process has no stdout")?;
    if stdout.read_exact(&mut [0]).is_ok() {
        return Ok(Exit::Ok);
    }
    let status = child.wait()?;
    let signal = status.signal().and_then(|number| u8::try_from(number).ok());
    Ok(match (status.code(), signal) {
        (Some(code), _) => Exit::Command(u8::try_from(code).unwrap_or(1)),
        (None, Some(number)) => Exit::Signal(number),
        (None, None) => Exit::Local,
    })
}

/// Counts what is still to come before connections are forwarded: the tunnel, and the listeners of the other end.
#[derive(Clone)]
pub(super) struct Readiness {
    left: Arc<AtomicUsize>,
    is_background: bool,
    console: Console,
}

impl Readiness {
    /// Returns the readiness of a tunnel with so many listeners of the other end.
    pub(super) fn new(listeners: usize, is_background: bool, console: &Console) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(listeners + 1)),
            is_background,
            console: console.clone(),
        }
    }

    /// Counts one of them. After the last one the user is told, and a process in the background leaves its terminal.
    pub(super) fn reached(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        self.console
            .note("ready: connections are forwarded from now on");
        if self.is_background {
            self.console.flush();
            if leave().is_err() {
                // The process that waits for this one has ended: nothing is left behind.
                std::process::exit(Exit::Local.code().into());
            }
        }
    }
}

/// Leaves the session of the terminal and the terminal itself, and tells the process that waits. Messages go on only to a
/// file: the reader of a pipe waits for its end.
fn leave() -> io::Result<()> {
    // Fails only for a process that leads a group, which a started one does not.
    let _ = setsid();
    dup2_stdin(File::open("/dev/null")?)?;
    if EntryIdentity::of_open_file(io::stderr()).is_none() {
        dup2_stderr(File::options().write(true).open("/dev/null")?)?;
    }
    io::stdout().write_all(b"\n")?;
    close_stdout()
}
