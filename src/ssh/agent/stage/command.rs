//! A stage that runs a command in the user's login shell, with all processes that it starts.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, mpsc as blocking_mpsc},
    thread,
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};
use tokio::{
    process::{Child, ChildStdout, Command},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{StageContext, StageEdges};
use crate::{
    fd::{Sink, Source},
    options::FlowOptions,
    process,
    ssh::{
        agent::{
            descendants::{self, Merged, is_broken_pipe, reap_all, signal_in},
            edges::{ConnectedEdge, EarlyEnd},
            guard::{self, Hold},
            job::PlacedEdge,
        },
        explain,
        protocol::FromAgent,
        stage::{FromStage, Status},
    },
    threads,
};

/// Runs the command between its edges, with the stdin `empty` if it has no input edge. Returns the status of the stage,
/// or none if the command could not be started or killed.
pub(super) async fn run(
    stage: &StageContext,
    command: &[u8],
    empty: EmptyStdin,
    ends: StageEdges,
) -> Option<Status> {
    let (tree, pipes, ends) = start(stage, command, empty, ends).await?;
    let tree_ended = CancellationToken::new();
    let (output_complete, when_complete) = oneshot::channel();
    let supervising = supervise(stage, tree, output_complete, tree_ended.clone());
    let is_complete = async move { when_complete.await.is_ok() };
    let carrying = carry(ends, pipes, stage.flow, &tree_ended, is_complete);
    tokio::join!(supervising, carrying).0
}

/// Runs the command between its edges as sshd does. Its stdin is closed when it has exited, and its output ends when all
/// that have its stdout have closed it. Processes that are left go on, unless the order has failed. Returns the status
/// of the command itself, or none if it could not be started or killed.
pub(super) async fn run_as_sshd(
    stage: &StageContext,
    command: &[u8],
    ends: StageEdges,
) -> Option<Status> {
    let (tree, pipes, ends) = start(stage, command, EmptyStdin::Readable, ends).await?;
    let command_ended = CancellationToken::new();
    let all_ended = CancellationToken::new();
    let first_fault = Arc::clone(&stage.context.first_fault);
    // What a command has written before a signal killed it is its output: the status tells of the signal.
    let is_complete = async move { !first_fault.has_failed() };
    let carrying = async {
        carry(ends, pipes, stage.flow, &command_ended, is_complete).await;
        command_ended.cancelled().await;
        all_ended.cancel();
    };
    let supervising = supervise_as_sshd(stage, tree, &command_ended, &all_ended);
    let (status, ()) = tokio::join!(supervising, carrying);
    if !stage.context.first_fault.has_failed() {
        guard::leave_processes();
    }
    status
}

/// Starts the command, with the stdin `empty` if it has no input edge. If the shell cannot be started, fails the order,
/// closes the edges, and returns none.
async fn start(
    stage: &StageContext,
    command: &[u8],
    empty: EmptyStdin,
    ends: StageEdges,
) -> Option<(ProcessTree, Pipes, StageEdges)> {
    let stdin = ends.input.is_none().then_some(empty);
    match ProcessTree::spawn(command, stdin, ends.output.is_some()) {
        Ok((tree, pipes)) => Some((tree, pipes, ends)),
        Err(text) => {
            stage.context.fail_local(&text);
            close(ends.input).await;
            close(ends.output).await;
            None
        }
    }
}

/// Moves the bytes of both edges: into the command's stdin until the command has ended, and from its stdout to its end.
/// The output edge ends in order if `is_complete` says then that the output is complete.
async fn carry(
    ends: StageEdges,
    pipes: Pipes,
    flow: FlowOptions,
    ended: &CancellationToken,
    is_complete: impl Future<Output = bool> + Send + 'static,
) {
    let StageEdges { input, output } = ends;
    let feeding = async {
        if let (Some((thread, edge)), Some(stdin)) = (input, pipes.stdin) {
            thread
                .run(feed_stdin(edge, stdin, flow, ended.clone()))
                .await;
        }
    };
    let sending = async {
        if let (Some((thread, edge)), Some(stdout)) = (output, pipes.stdout) {
            thread
                .run(send_stdout(edge, stdout, flow, is_complete))
                .await;
        }
    };
    tokio::join!(feeding, sending);
}

async fn close(end: Option<PlacedEdge>) {
    if let Some((thread, edge)) = end {
        thread.run(edge.close()).await;
    }
}

/// Waits until the command and all its descendants have ended, and kills them if the order fails. Sends
/// `output_complete` if the bytes that the command wrote are all of its output. Cancels `tree_ended` at the end.
async fn supervise(
    stage: &StageContext,
    mut tree: ProcessTree,
    output_complete: oneshot::Sender<()>,
    tree_ended: CancellationToken,
) -> Option<Status> {
    let first_fault = &stage.context.first_fault;
    let mut is_killed = false;
    let status = loop {
        tokio::select! {
            biased;
            ending = tree.next() => match ending {
                // The order fails at once if the command was killed: its descendants are then killed as well.
                Some(ProcessEvent::Command(status)) => give_up_if_killed(stage, status),
                Some(ProcessEvent::All(status)) => break Some(status),
                None => break None,
            },
            () = first_fault.failed(), if !is_killed => {
                is_killed = true;
                if !kill(stage, &mut tree).await {
                    break None;
                }
            }
        }
    };
    if let Some(status) = status {
        give_up_if_killed(stage, status);
        // After a fault the status may be that of our own SIGTERM, which the controller must not count as a success.
        if first_fault.fault().is_none() {
            stage.send(&FromStage::Ended(status));
        }
        if !first_fault.has_failed() {
            let _ = output_complete.send(());
        }
    }
    tree_ended.cancel();
    status
}

/// Waits until the command has ended, which cancels `command_ended`, and then for `all_ended`. Kills the command and all
/// its descendants if the order fails. Returns the status of the command.
async fn supervise_as_sshd(
    stage: &StageContext,
    mut tree: ProcessTree,
    command_ended: &CancellationToken,
    all_ended: &CancellationToken,
) -> Option<Status> {
    let mut status = None;
    let mut is_killed = false;
    loop {
        tokio::select! {
            biased;
            ending = tree.next() => match ending {
                Some(ProcessEvent::Command(ended)) => {
                    status = Some(ended);
                    command_ended.cancel();
                }
                Some(ProcessEvent::All(_)) | None => break,
            },
            () = all_ended.cancelled() => break,
            () = stage.context.first_fault.failed(), if !is_killed => {
                is_killed = true;
                if !kill(stage, &mut tree).await {
                    status = None;
                    break;
                }
            }
        }
    }
    command_ended.cancel();
    status
}

/// Kills the command and all its descendants. Returns false if some are left, after a warning that names them.
async fn kill(stage: &StageContext, tree: &mut ProcessTree) -> bool {
    let killed = tree.kill().await;
    if let Err(left) = &killed {
        let text = format!("cannot kill {}", left.join(", "));
        stage.context.outbox.send(FromAgent::Warning(text));
    }
    killed.is_ok()
}

/// Fails the order if the command was killed: its output is incomplete, so no end of file may follow it. A death by
/// SIGPIPE after the next stage has stopped reading is not a failure.
fn give_up_if_killed(stage: &StageContext, status: Status) {
    let is_expected_sigpipe =
        is_broken_pipe(status) && stage.context.first_fault.output_stopped.is_set();
    if let (Some(number), false) = (signal_in(status), is_expected_sigpipe) {
        let signal = explain::signal(number);
        let reason = format!("{}: its command was killed by {signal}", stage.context.name);
        stage.context.first_fault.give_up(reason);
    }
}

/// Writes the input to the command's stdin. Closes stdin after a verified end of the input, or when the command is
/// dead: a pipe cannot report a failure, and `cat > copy` must not succeed with half its input.
async fn feed_stdin(
    mut edge: ConnectedEdge,
    stdin: Stdin,
    flow: FlowOptions,
    tree_ended: CancellationToken,
) {
    let Stdin { pipe, hold } = stdin;
    let sink = match Sink::new(pipe, "the command's input") {
        Ok(mut sink) => {
            write_input(&mut edge, &mut sink, flow, &tree_ended).await;
            Some(sink)
        }
        Err(error) => {
            edge.fail_local(format!("cannot use a pipe: {error}"));
            None
        }
    };
    if edge.first_fault.has_failed() {
        edge.abort_if_failed();
        tree_ended.cancelled().await;
        drop(sink);
    } else {
        drop(sink);
        if let Some(hold) = hold {
            hold.release();
        }
        if !edge.first_fault.input_stopped.is_set() {
            // This fails only if the peer is gone, and all its bytes have arrived.
            let _ = edge.stream.confirm();
        }
    }
    edge.close().await;
}

async fn write_input(
    edge: &mut ConnectedEdge,
    sink: &mut Sink,
    flow: FlowOptions,
    tree_ended: &CancellationToken,
) {
    let drained = tokio::select! {
        biased;
        drained = edge.drain(sink, flow) => Some(drained),
        () = tree_ended.cancelled() => None,
    };
    match drained {
        Some(Ok(()) | Err(EarlyEnd::Elsewhere | EarlyEnd::Stopped)) => {}
        Some(Err(EarlyEnd::Stream(error))) => edge.broken(error),
        Some(Err(EarlyEnd::Buffer(error))) => edge.fail_local(error.to_string()),
        Some(Err(EarlyEnd::Local(error, offset))) if error.kind() != io::ErrorKind::BrokenPipe => {
            edge.fail_local(format!(
                "cannot write to the command at byte {offset}: {error}"
            ));
        }
        // The command closed its stdin early, or ended before it had read all of its input.
        Some(Err(EarlyEnd::Local(..))) | None => {
            // What is left in the buffer at the end of the input is lost, as what is left in a pipe.
            if !edge.first_fault.has_failed() && edge.stream.confirm().is_err() {
                edge.first_fault.input_stopped.set();
                edge.stream.stop();
            }
        }
    }
}

/// Sends the command's stdout, and a FIN if `is_complete` returns true.
async fn send_stdout(
    mut edge: ConnectedEdge,
    stdout: OwnedFd,
    flow: FlowOptions,
    is_complete: impl Future<Output = bool>,
) {
    match read_output(&mut edge, stdout, flow, is_complete).await {
        Ok(()) | Err(EarlyEnd::Elsewhere) => {}
        Err(EarlyEnd::Stopped) => edge.first_fault.output_stopped.set(),
        Err(EarlyEnd::Stream(error)) => edge.broken(error),
        Err(EarlyEnd::Buffer(error)) => edge.fail_local(error.to_string()),
        Err(EarlyEnd::Local(error, offset)) => {
            edge.fail_local(format!(
                "cannot read from the command at byte {offset}: {error}"
            ));
        }
    }
    edge.close().await;
}

async fn read_output(
    edge: &mut ConnectedEdge,
    stdout: OwnedFd,
    flow: FlowOptions,
    is_complete: impl Future<Output = bool>,
) -> Result<(), EarlyEnd> {
    let mut source = Source::new(stdout).map_err(|error| EarlyEnd::Local(error, 0))?;
    let filled = edge.fill(&mut source, flow).await;
    if let Err(EarlyEnd::Stopped) = filled {
        // The flag is set before the pipe is closed: the death by SIGPIPE that follows is then forgiven.
        edge.first_fault.output_stopped.set();
    }
    drop(source);
    filled?;
    if edge.until(is_complete).await? {
        edge.finish().await
    } else {
        Err(EarlyEnd::Elsewhere)
    }
}

/// An event of a process tree: a process has ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProcessEvent {
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
    endings: mpsc::UnboundedReceiver<ProcessEvent>,
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
    /// Runs `command` in the user's login shell, in a process group of its own. The shell's name for itself is its file
    /// name, as sshd calls it. It inherits this process's stderr. Its stdin is a pipe, or as `empty` says.
    /// Fails if the shell cannot be started.
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
                Some(EmptyStdin::Unreadable) => (process::unreadable_stdin()?.into(), None),
            };
            let mut starting = Command::new(&shell);
            starting
                .arg0(shell.file_name().unwrap_or(shell.as_os_str()))
                .arg("-c")
                .arg(OsStr::from_bytes(command))
                .env_remove(guard::VARIABLE)
                .stdin(reader)
                .stdout(if has_output {
                    Stdio::piped()
                } else {
                    Stdio::null()
                })
                .process_group(0);
            let mut child = process::with_inherited_core_dumps(|| starting.spawn())?;
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
                    let _ = endings.send(ProcessEvent::Command(status));
                }
            });
            if let (Ok(()), Some(status)) = (reaped, merged.status()) {
                let _ = endings.send(ProcessEvent::All(status));
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

    /// Waits for the next ending. Returns none after [`ProcessEvent::All`].
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<ProcessEvent> {
        self.endings.recv().await
    }

    /// Ends all processes of the tree, within 3 s. A second call does nothing.
    /// The error is the names of the processes that could not be killed.
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
