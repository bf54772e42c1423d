//! A command in the user's login shell, with all processes that it starts.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::PathBuf,
    process::Stdio,
    sync::mpsc as blocking_mpsc,
    thread,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};
use tokio::{
    process::{Child, ChildStdout, Command},
    sync::mpsc,
};

use crate::{
    process::{core_dumps, standard},
    ssh::{
        agent::process::{
            descendants,
            hold::{self, Hold},
            reaper::{Merged, reap_all},
        },
        stage::Status,
    },
    threads,
};

/// An event of a process tree: a process has ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProcessEnding {
    /// The command itself has ended, with this status. Processes that it started may still run.
    Command(Status),
    /// The last process has ended. The status is that of the stage.
    All(Status),
}

/// The stdin of a command that has no input.
#[derive(Debug, Clone, Copy)]
pub(super) enum EmptyStdin {
    /// A read returns the end of file.
    Readable,
    /// A read fails, as that of a closed descriptor does.
    Unreadable,
}

/// A running command and all its descendants.
pub(super) struct ProcessTree {
    endings: mpsc::UnboundedReceiver<ProcessEnding>,
    /// Disconnected when the last process has been reaped.
    ended: Option<blocking_mpsc::Receiver<()>>,
    /// Kept, because tokio waits for a child whose handle was dropped: only the reaper may wait for the command.
    _command: Child,
}

/// This process's ends of the command's pipes, each if there is one.
pub(super) struct Pipes {
    pub(super) stdin: Option<Stdin>,
    pub(super) stdout: Option<OwnedFd>,
}

/// The pipe to the command's stdin, and the guard's hold on it.
pub(super) struct Stdin {
    pub(super) pipe: OwnedFd,
    pub(super) hold: Option<Hold>,
}

impl ProcessTree {
    /// Runs `command` in the user's login shell, in a process group of its own. It inherits this process's stderr. Its
    /// stdin is a pipe, or as `empty` says.
    ///
    /// # Errors
    ///
    /// A sentence for the user, if the shell cannot be started.
    pub(super) fn spawn(
        command: &[u8],
        empty: Option<EmptyStdin>,
        has_output: bool,
    ) -> Result<(Self, Pipes), String> {
        let shell = PathBuf::from(shell(env::var_os("SHELL")));
        let spawning = || {
            let (reader, stdin) = match empty {
                None => stdin()?,
                Some(EmptyStdin::Readable) => (Stdio::null(), None),
                Some(EmptyStdin::Unreadable) => (standard::unreadable()?.into(), None),
            };
            let mut starting = Command::new(&shell);
            starting
                .arg("-c")
                .arg(OsStr::from_bytes(command))
                .env_remove(hold::VARIABLE)
                .stdin(reader)
                .stdout(if has_output {
                    Stdio::piped()
                } else {
                    Stdio::null()
                })
                .process_group(0);
            let mut child = core_dumps::restored_for(|| starting.spawn())?;
            let stdout = child.stdout.take().map(ChildStdout::into_owned_fd);
            let stdout = stdout.transpose()?;
            Ok((Self::watch(child)?, Pipes { stdin, stdout }))
        };
        let spawned: io::Result<_> = spawning();
        spawned.map_err(|error| format!("cannot run the shell {}: {error}", shell.display()))
    }

    /// Starts the thread that reaps the command and its descendants. No other part of this process may start children
    /// or wait for them.
    fn watch(child: Child) -> io::Result<Self> {
        let number = child.id().and_then(|id| i32::try_from(id).ok());
        let command = number.and_then(Pid::from_raw);
        let (endings, receiver) = mpsc::unbounded_channel();
        let (alive, ended) = blocking_mpsc::channel();
        let reap = move || {
            let mut merged = Merged::default();
            let reaped = reap_all(|pid, status| {
                let is_command = Some(pid) == command;
                merged.add(is_command, status);
                if is_command {
                    let _ = endings.send(ProcessEnding::Command(status));
                }
            });
            if let (Ok(()), Some(status)) = (reaped, merged.status()) {
                let _ = endings.send(ProcessEnding::All(status));
            }
            drop(alive);
        };
        thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(reap)?;
        Ok(Self {
            endings: receiver,
            ended: Some(ended),
            _command: child,
        })
    }

    /// Waits for the next ending. Returns none after [`ProcessEnding::All`].
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub(super) async fn next(&mut self) -> Option<ProcessEnding> {
        self.endings.recv().await
    }

    /// Ends all processes of the tree, within 3 s. A second call does nothing.
    ///
    /// # Errors
    ///
    /// The names of the processes that could not be killed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the killing, and loses its result.
    pub(super) async fn kill(&mut self) -> Result<(), Vec<String>> {
        let Some(ended) = self.ended.take() else {
            return Ok(());
        };
        let killing = threads::blocking(move || descendants::end_all(&ended));
        let unkilled = |error| Err(vec![format!("the processes of the command: {error}")]);
        killing.await.unwrap_or_else(unkilled)
    }
}

/// Makes the pipe for the command's stdin, and makes the guard hold it open.
fn stdin() -> io::Result<(Stdio, Option<Stdin>)> {
    let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
    let hold = Hold::on(&pipe);
    Ok((reader.into(), Some(Stdin { pipe, hold })))
}

/// Returns the user's login shell: the value of `SHELL`, which sshd and login set, or `/bin/sh`.
fn shell(variable: Option<OsString>) -> OsString {
    variable
        .filter(|shell| !shell.is_empty())
        .unwrap_or_else(|| "/bin/sh".into())
}
