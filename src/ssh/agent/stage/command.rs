//! A stage that runs a command.

use std::{io, os::fd::OwnedFd};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    StageContext, StageEdges,
    process_tree::{EmptyStdin, ProcessEnding, ProcessTree, Stdin},
};
use crate::{
    fd::{Sink, Source},
    ssh::{
        agent::{
            connected_edge::{ConnectedEdge, EarlyEnd},
            job::PlacedEdge,
            process::reaper::{is_broken_pipe, signal_in},
        },
        explain,
        protocol::FromAgent,
        stage::{FromStage, Status},
    },
};

/// Runs the command between its edges, with the stdin `empty` if it has no input edge. Returns the status of the stage, or none if the command could not be started or
/// killed.
pub(super) async fn run(
    stage: &StageContext,
    command: &[u8],
    empty: EmptyStdin,
    ends: StageEdges,
) -> Option<Status> {
    let StageEdges { input, output } = ends;
    let stdin = input.is_none().then_some(empty);
    let (tree, pipes) = match ProcessTree::spawn(command, stdin, output.is_some()) {
        Ok(spawned) => spawned,
        Err(text) => {
            stage.context.fail_local(&text);
            close(input).await;
            close(output).await;
            return None;
        }
    };
    let tree_ended = CancellationToken::new();
    let (output_complete, when_complete) = oneshot::channel();
    let supervising = supervise(stage, tree, output_complete, tree_ended.clone());
    let feeding = async {
        if let (Some((thread, edge)), Some(stdin)) = (input, pipes.stdin) {
            thread
                .run(feed_stdin(edge, stdin, tree_ended.clone()))
                .await;
        }
    };
    let sending = async {
        if let (Some((thread, edge)), Some(stdout)) = (output, pipes.stdout) {
            thread.run(send_stdout(edge, stdout, when_complete)).await;
        }
    };
    tokio::join!(supervising, feeding, sending).0
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
    let cause = &stage.context.cause;
    let mut is_killed = false;
    let status = loop {
        tokio::select! {
            biased;
            ending = tree.next() => match ending {
                // The order fails at once if the command was killed: its descendants are then killed as well.
                Some(ProcessEnding::Command(status)) => give_up_if_killed(stage, status),
                Some(ProcessEnding::All(status)) => break Some(status),
                None => break None,
            },
            () = cause.failed(), if !is_killed => {
                is_killed = true;
                if let Err(left) = tree.kill().await {
                    let text = format!("cannot kill {}", left.join(", "));
                    stage.context.outbox.send(FromAgent::Warning(text));
                    break None;
                }
            }
        }
    };
    if let Some(status) = status {
        give_up_if_killed(stage, status);
        // After a fault the status may be that of our own SIGTERM, which the controller must not count as a success.
        if cause.fault().is_none() {
            stage.send(&FromStage::Ended(status));
        }
        if !cause.has_failed() {
            let _ = output_complete.send(());
        }
    }
    tree_ended.cancel();
    status
}

/// Fails the order if the command was killed: its output is incomplete, so no end of file may follow it. A death by
/// SIGPIPE after the next stage has stopped reading is not a failure.
fn give_up_if_killed(stage: &StageContext, status: Status) {
    let is_expected_sigpipe = is_broken_pipe(status) && stage.context.cause.output_stopped.is_set();
    if let (Some(number), false) = (signal_in(status), is_expected_sigpipe) {
        let signal = explain::signal(number);
        let reason = format!("{}: its command was killed by {signal}", stage.context.name);
        stage.context.cause.give_up(reason);
    }
}

/// Writes the input to the command's stdin. Closes stdin after a verified end of the input, or when the command is
/// dead: a pipe cannot report a failure, and `cat > copy` must not succeed with half its input.
async fn feed_stdin(mut edge: ConnectedEdge, stdin: Stdin, tree_ended: CancellationToken) {
    let Stdin { pipe, hold } = stdin;
    let sink = match Sink::new(pipe, "the command's input") {
        Ok(mut sink) => {
            write_input(&mut edge, &mut sink, &tree_ended).await;
            Some(sink)
        }
        Err(error) => {
            edge.fail_local(format!("cannot use a pipe: {error}"));
            None
        }
    };
    if edge.cause.has_failed() {
        edge.abort_if_failed();
        tree_ended.cancelled().await;
        drop(sink);
    } else {
        drop(sink);
        if let Some(hold) = hold {
            hold.release();
        }
        if !edge.cause.input_stopped.is_set() {
            // This fails only if the peer is gone, and all its bytes have arrived.
            let _ = edge.stream.confirm();
        }
    }
    edge.close().await;
}

async fn write_input(edge: &mut ConnectedEdge, sink: &mut Sink, tree_ended: &CancellationToken) {
    let drained = tokio::select! {
        biased;
        drained = edge.drain(sink) => Some(drained),
        () = tree_ended.cancelled() => None,
    };
    match drained {
        Some(Ok(()) | Err(EarlyEnd::Elsewhere | EarlyEnd::Stopped)) => {}
        Some(Err(EarlyEnd::Stream(error))) => edge.broken(error),
        Some(Err(EarlyEnd::Local(error, offset))) if error.kind() != io::ErrorKind::BrokenPipe => {
            edge.fail_local(format!(
                "cannot write to the command at byte {offset}: {error}"
            ));
        }
        // The command closed its stdin early, or ended before it had read all of its input.
        Some(Err(EarlyEnd::Local(..))) | None => {
            if !edge.cause.has_failed() {
                edge.cause.input_stopped.set();
                edge.stream.stop();
            }
        }
    }
}

/// Sends the command's stdout, and a FIN after `output_complete` has arrived.
async fn send_stdout(
    mut edge: ConnectedEdge,
    stdout: OwnedFd,
    output_complete: oneshot::Receiver<()>,
) {
    match read_output(&mut edge, stdout, output_complete).await {
        Ok(()) | Err(EarlyEnd::Elsewhere) => {}
        Err(EarlyEnd::Stopped) => edge.cause.output_stopped.set(),
        Err(EarlyEnd::Stream(error)) => edge.broken(error),
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
    output_complete: oneshot::Receiver<()>,
) -> Result<(), EarlyEnd> {
    let mut source = Source::new(stdout).map_err(|error| EarlyEnd::Local(error, 0))?;
    let filled = edge.fill(&mut source).await;
    if let Err(EarlyEnd::Stopped) = filled {
        // The flag is set before the pipe is closed: the death by SIGPIPE that follows is then forgiven.
        edge.cause.output_stopped.set();
    }
    drop(source);
    filled?;
    match edge.until(output_complete).await? {
        Ok(()) => edge.finish().await,
        Err(_) => Err(EarlyEnd::Elsewhere),
    }
}
