//! A stage that runs a command.

use std::{io, os::fd::OwnedFd};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    StageContext, StageEdges,
    process_tree::{ProcessEnding, ProcessTree, Stdin},
};
use crate::{
    fd::{Sink, Source},
    ssh::{
        agent::{
            connected_edge::{ConnectedEdge, Trouble},
            job::PlacedEdge,
            process::reaper::{is_broken_pipe, signal_in},
        },
        explain,
        protocol::FromAgent,
        stage::{FromStage, Status},
    },
};

/// Runs the command between its edges.
pub(super) async fn run(stage: &StageContext, command: &[u8], ends: StageEdges) -> Option<Status> {
    let StageEdges { input, output } = ends;
    let (tree, pipes) = match ProcessTree::spawn(command, input.is_some(), output.is_some()) {
        Ok(grown) => grown,
        Err(text) => {
            stage.context.fail_local(&text);
            close(input).await;
            close(output).await;
            return None;
        }
    };
    let dead = CancellationToken::new();
    let (good, is_good) = oneshot::channel();
    let supervising = supervise(stage, tree, good, dead.clone());
    let taking = async {
        if let (Some((thread, edge)), Some(stdin)) = (input, pipes.stdin) {
            thread.run(take(edge, stdin, dead.clone())).await;
        }
    };
    let giving = async {
        if let (Some((thread, edge)), Some(stdout)) = (output, pipes.stdout) {
            thread.run(give(edge, stdout, is_good)).await;
        }
    };
    tokio::join!(supervising, taking, giving).0
}

async fn close(end: Option<PlacedEdge>) {
    if let Some((thread, edge)) = end {
        thread.run(edge.close()).await;
    }
}

/// Waits until the command and all its descendants have ended; kills them when something fails. Says
/// `good` if what the command wrote is all of its output.
async fn supervise(
    stage: &StageContext,
    mut tree: ProcessTree,
    good: oneshot::Sender<()>,
    dead: CancellationToken,
) -> Option<Status> {
    let cause = &stage.context.cause;
    let mut is_killed = false;
    let status = loop {
        tokio::select! {
            biased;
            ending = tree.next() => match ending {
                // What a killed command leaves behind is of no use.
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
        // After a fault the status tells of our own SIGTERM: it must not be taken for a success.
        if cause.fault().is_none() {
            stage.send(&FromStage::Ended(status));
        }
        if !cause.has_failed() {
            let _ = good.send(());
        }
    }
    dead.cancel();
    status
}

/// A command that was killed has not come to its end, so there is no end of file after its output.
/// Exempt is a death by SIGPIPE that the next stage wanted.
fn give_up_if_killed(stage: &StageContext, status: Status) {
    let was_wanted = is_broken_pipe(status) && stage.context.cause.output_stopped.is_set();
    if let (Some(number), false) = (signal_in(status), was_wanted) {
        let signal = explain::signal(number);
        let reason = format!("{}: its command was killed by {signal}", stage.context.name);
        stage.context.cause.give_up(reason);
    }
}

/// Gives the command its input. Its stdin is closed after a verified end, or when it is dead: a pipe
/// cannot say that something broke, and `cat > copy` must not end happily on half its input.
async fn take(mut edge: ConnectedEdge, stdin: Stdin, dead: CancellationToken) {
    let Stdin { pipe, hold } = stdin;
    let sink = match Sink::new(pipe, "the command's input") {
        Ok(mut sink) => {
            take_into(&mut edge, &mut sink, &dead).await;
            Some(sink)
        }
        Err(error) => {
            edge.fail_local(format!("cannot use a pipe: {error}"));
            None
        }
    };
    if edge.cause.has_failed() {
        edge.abort_if_failed();
        dead.cancelled().await;
        drop(sink);
    } else {
        drop(sink);
        if let Some(hold) = hold {
            hold.release();
        }
        if !edge.cause.input_stopped.is_set() {
            // Fails only where the peer is gone by now: it had given everything.
            let _ = edge.stream.confirm();
        }
    }
    edge.close().await;
}

async fn take_into(edge: &mut ConnectedEdge, sink: &mut Sink, dead: &CancellationToken) {
    let drained = tokio::select! {
        biased;
        drained = edge.drain(sink) => Some(drained),
        () = dead.cancelled() => None,
    };
    match drained {
        Some(Ok(()) | Err(Trouble::Elsewhere | Trouble::Stopped)) => {}
        Some(Err(Trouble::Stream(error))) => edge.broken(error),
        Some(Err(Trouble::Local(error, offset))) if error.kind() != io::ErrorKind::BrokenPipe => {
            edge.fail_local(format!(
                "cannot write to the command at byte {offset}: {error}"
            ));
        }
        // It closed its stdin early, or ended without having read all.
        Some(Err(Trouble::Local(..))) | None => {
            if !edge.cause.has_failed() {
                edge.cause.input_stopped.set();
                edge.stream.stop();
            }
        }
    }
}

/// Sends what the command writes, and a FIN once it is `good`.
async fn give(mut edge: ConnectedEdge, stdout: OwnedFd, good: oneshot::Receiver<()>) {
    match give_from(&mut edge, stdout, good).await {
        Ok(()) | Err(Trouble::Elsewhere) => {}
        Err(Trouble::Stopped) => edge.cause.output_stopped.set(),
        Err(Trouble::Stream(error)) => edge.broken(error),
        Err(Trouble::Local(error, offset)) => {
            edge.fail_local(format!(
                "cannot read from the command at byte {offset}: {error}"
            ));
        }
    }
    edge.close().await;
}

async fn give_from(
    edge: &mut ConnectedEdge,
    stdout: OwnedFd,
    good: oneshot::Receiver<()>,
) -> Result<(), Trouble> {
    let mut source = Source::new(stdout).map_err(|error| Trouble::Local(error, 0))?;
    let filled = edge.fill(&mut source).await;
    if let Err(Trouble::Stopped) = filled {
        // Before the pipe is closed, so that a death by SIGPIPE finds its excuse.
        edge.cause.output_stopped.set();
    }
    drop(source);
    filled?;
    match edge.until(good).await? {
        Ok(()) => edge.finish().await,
        Err(_) => Err(Trouble::Elsewhere),
    }
}
