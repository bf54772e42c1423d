//! A command in the user's shell, with everything that it starts.

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

use crate::ssh::{
    agent::process::{
        descendants,
        hold::{self, Hold},
        reaper::{Merged, reap_all},
    },
    stage::Status,
};

/// Something ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProcessEnding {
    /// The command itself; what it started may still run.
    Command(Status),
    /// The last of all its processes; the status is that of the stage.
    All(Status),
}

/// A running command.
pub(super) struct ProcessTree {
    endings: mpsc::UnboundedReceiver<ProcessEnding>,
    /// Hangs up when nothing is left.
    ended: Option<blocking_mpsc::Receiver<()>>,
    /// Waited for by the reaper: tokio, which waits for a child that was dropped, is to keep out of it.
    _command: Child,
}

/// This end of the command's pipes, where it has any.
pub(super) struct Pipes {
    pub(super) stdin: Option<Stdin>,
    pub(super) stdout: Option<OwnedFd>,
}

/// The pipe to the command's stdin.
pub(super) struct Stdin {
    pub(super) pipe: OwnedFd,
    pub(super) hold: Option<Hold>,
}

impl ProcessTree {
    /// Runs `command` in the user's login shell, in a process group of its own. Its stderr is ours.
    ///
    /// # Errors
    ///
    /// A sentence for the user when the shell cannot be started.
    pub(super) fn spawn(
        command: &[u8],
        has_input: bool,
        has_output: bool,
    ) -> Result<(Self, Pipes), String> {
        let shell = PathBuf::from(shell(env::var_os("SHELL")));
        let spawning = || {
            let (reader, stdin) = if has_input {
                stdin()?
            } else {
                (Stdio::null(), None)
            };
            let mut child = Command::new(&shell)
                .arg("-c")
                .arg(OsStr::from_bytes(command))
                .env_remove(hold::VARIABLE)
                .stdin(reader)
                .stdout(if has_output {
                    Stdio::piped()
                } else {
                    Stdio::null()
                })
                .process_group(0)
                .spawn()?;
            let stdout = child.stdout.take().map(ChildStdout::into_owned_fd);
            let stdout = stdout.transpose()?;
            Ok((Self::watch(child)?, Pipes { stdin, stdout }))
        };
        let spawned: io::Result<_> = spawning();
        spawned.map_err(|error| format!("cannot run the shell {}: {error}", shell.display()))
    }

    /// Reaps on a thread of its own: nothing else in this process starts children, or waits for any.
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

    /// What ends next; none after the last.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub(super) async fn next(&mut self) -> Option<ProcessEnding> {
        self.endings.recv().await
    }

    /// Ends all of it, within seconds. Only the first call does anything.
    ///
    /// # Errors
    ///
    /// The processes that could not be killed.
    ///
    /// # Cancel safety
    ///
    /// It goes on when the future is dropped.
    pub(super) async fn kill(&mut self) -> Result<(), Vec<String>> {
        let Some(ended) = self.ended.take() else {
            return Ok(());
        };
        let killing = tokio::task::spawn_blocking(move || descendants::end_all(&ended));
        killing
            .await
            .unwrap_or_else(|error| Err(vec![error.to_string()]))
    }
}

/// A pipe for the command to read from, which the guard holds open.
fn stdin() -> io::Result<(Stdio, Option<Stdin>)> {
    let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
    let hold = Hold::on(&pipe);
    Ok((reader.into(), Some(Stdin { pipe, hold })))
}

/// The user's login shell, as sshd and login tell it.
fn shell(variable: Option<OsString>) -> OsString {
    variable
        .filter(|shell| !shell.is_empty())
        .unwrap_or_else(|| "/bin/sh".into())
}
