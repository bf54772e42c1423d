//! Joins two rdcats: one prints a ticket and listens, the other connects with that ticket. Stdin goes to the peer and
//! its bytes to stdout, both at once.

use std::{io, pin::pin};

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, ReadHalf, Stream, StreamConfig, WriteHalf,
    carry::{self, CarryThread},
    cli::{
        args::RdcatArgs,
        shared::{
            progress::is_on_terminal,
            report::Report,
            run::{Exit, Run, explained},
            ticket::{self, TicketOffer},
        },
    },
    fd::{Sink, Source},
    options::FlowOptions,
    process,
    reach::ticket::Ticket,
};

pub(super) enum TicketRole {
    /// Prints a ticket, and waits for the peer.
    Listen,
    /// Connects to the addresses in this ticket.
    Dial(Ticket),
}

/// Joins stdin and stdout with those of the peer, until both directions have ended.
pub(super) async fn join(args: RdcatArgs, way: TicketRole, mut run: Run) -> Report {
    let met = match way {
        TicketRole::Listen => listen(&args, &mut run).await,
        TicketRole::Dial(ticket) => dial(&args, &ticket, &mut run).await,
    };
    let stream = match met {
        Ok(stream) => stream,
        Err(error) => return run.failed(&error),
    };
    let terminal =
        is_on_terminal(&io::stdout(), args.send) || is_on_terminal(&io::stdin(), args.recv);
    let progress = run.connected(&stream, None, terminal);
    let (stream, result) = carry(stream, &mut run).await;
    drop(progress);
    run.end(stream, result).await
}

/// Prints a ticket, and waits for the peer that has it.
async fn listen(args: &RdcatArgs, run: &mut Run) -> anyhow::Result<Stream> {
    let offer = TicketOffer {
        hosts: args.hosts.clone(),
        bind: args.bind,
        config: stream_config(args, run),
        purpose: "connect",
        command: "rdcat".to_owned(),
    };
    let listener = offer.listen(&run.console).await?;
    let stream = run.interruptible(listener.peer()).await?;
    run.console.detail(&format!(
        "{} connected from {}",
        stream.peer(),
        stream.peer_addr()
    ));
    Ok(stream)
}

/// Connects to the first address in the ticket at which the peer answers.
async fn dial(args: &RdcatArgs, ticket: &Ticket, run: &mut Run) -> anyhow::Result<Stream> {
    let config = stream_config(args, run);
    let dialing = ticket::dial(ticket, "rdcat -l", &config);
    let stream = run.interruptible(dialing).await?;
    run.console
        .detail(&format!("connected to {}", stream.peer_addr()));
    Ok(stream)
}

fn stream_config(args: &RdcatArgs, run: &Run) -> StreamConfig {
    StreamConfig {
        control_runtime: Some(run.control_runtime.clone()),
        ..args.stream_config()
    }
}

/// Copies the bytes of both directions until both have ended, and returns the stream for closing.
///
/// Each direction has its own thread, so a disk that stalls in one direction delays neither the other direction nor the
/// stream. If one direction fails, both end.
pub(super) async fn carry(stream: Stream, run: &mut Run) -> (Stream, anyhow::Result<()>) {
    let threads = CarryThread::start("input").and_then(|input| {
        let output = CarryThread::start("output")?;
        Ok((input, output))
    });
    let (input, output) = match threads.context("cannot start a thread") {
        Ok(threads) => threads,
        Err(error) => return (stream, Err(error)),
    };
    let over = CancellationToken::new();
    let (read, write) = stream.into_split();
    let giving = input.run(give(write, over.clone()));
    let taking = output.run(take(read, over.clone()));
    let mut both = pin!(futures::future::join(giving, taking));
    let until_signal = run
        .interruptible(async { Ok::<_, anyhow::Error>((&mut both).await) })
        .await;
    let (ends, interrupted) = match until_signal {
        Ok(ends) => (ends, None),
        Err(interrupted) => {
            over.cancel();
            (both.await, Some(interrupted))
        }
    };
    let ((write, given), (read, taken)) = ends;
    let stream = read.reunite(write).expect("they are of one stream");
    let result = interrupted.map_or_else(|| first_of(given, taken), Err);
    let result = result.map_err(|error| unless_stopped(error, &stream));
    (stream, result)
}

/// Returns the failure of the run. If both directions failed, returns the one that caused the other.
fn first_of(given: anyhow::Result<()>, taken: anyhow::Result<()>) -> anyhow::Result<()> {
    match (given, taken) {
        (Ok(()), taken) => taken,
        (given, Ok(())) => given,
        (Err(given), Err(taken)) if given.is::<Over>() => Err(taken),
        (Err(given), Err(taken)) if taken.is::<Over>() => Err(given),
        (_, taken) => taken,
    }
}

/// Returns [`Error::Stopped`] in place of an abort if the peer sent both. A peer whose reader has left sends STOP
/// before ABORT; which of the two this end receives first is chance.
fn unless_stopped(error: anyhow::Error, stream: &Stream) -> anyhow::Error {
    match stream.watch().error() {
        Some(stopped @ Error::Stopped { .. }) if Exit::from(&error) == Exit::Remote => {
            stopped.into()
        }
        _ => error,
    }
}

/// This direction ended because the other one failed. The error of the other direction has the reason.
#[derive(Debug, thiserror::Error)]
#[error("the other direction ended")]
struct Over;

/// Sends stdin, if this end sends at all. Cancels the other direction if sending fails.
async fn give(mut write: WriteHalf, over: CancellationToken) -> (WriteHalf, anyhow::Result<()>) {
    let mut result = Ok(());
    if write.direction().sends() {
        result = tokio::select! {
            biased;
            () = over.cancelled() => Err(Over.into()),
            given = give_all(&mut write) => given,
        };
    }
    end_other(&over, &result);
    (write, result)
}

/// Sends all of stdin, from the first byte to the confirmation of the peer.
async fn give_all(write: &mut WriteHalf) -> anyhow::Result<()> {
    let mut source = Source::stdin().context("cannot read stdin")?;
    let name = source.describe().to_owned();
    let sent = carry::send_and_finish(&mut source, write, FlowOptions::default()).await;
    sent.map(drop).map_err(|error| explained(error, &name))
}

/// Writes the received bytes to stdout, if this end receives at all. Cancels the other direction if that fails.
async fn take(mut read: ReadHalf, over: CancellationToken) -> (ReadHalf, anyhow::Result<()>) {
    let mut result = Ok(());
    if read.direction().receives() {
        result = tokio::select! {
            biased;
            () = over.cancelled() => Err(Over.into()),
            taken = take_all(&mut read) => taken,
        };
    }
    end_other(&over, &result);
    (read, result)
}

/// Receives everything, from the first byte to the confirmation that this end sends.
async fn take_all(read: &mut ReadHalf) -> anyhow::Result<()> {
    let mut sink = Sink::stdout().context("cannot open stdout for writing")?;
    let name = sink.describe().to_owned();
    let received = carry::receive_all(read, &mut sink).await;
    received.map_err(|error| explained(error, &name))?;
    sink.close(false)
        .await
        .with_context(|| format!("cannot finish {name}"))?;
    // Closing stdout gives a reader behind a pipe its end of file now, while the other direction continues.
    process::close_stdout().context("cannot close stdout")?;
    // All bytes have been written. A failure to confirm means that the peer has gone: if there is more to send,
    // sending reports that failure.
    let _ = read.confirm();
    Ok(())
}

fn end_other(over: &CancellationToken, result: &anyhow::Result<()>) {
    if result.is_err() {
        over.cancel();
    }
}
