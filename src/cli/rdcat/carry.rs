//! Stdin to the peer and the peer to stdout, both ways at once.

use std::{fs::File, pin::pin};

use anyhow::Context;
use rustix::stdio::dup2_stdout;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, ReadHalf, Stream, WriteHalf,
    carry::{self, thread::CarryThread},
    cli::shared::{
        exit::Exit,
        run::{Run, explained},
    },
    fd::{Sink, Source},
};

/// Carries everything to both ends, each way on a thread of its own: a disk that stalls in one holds up neither
/// the other nor the stream. A way that fails ends both. The stream comes back, to be closed.
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

/// The failure that explains the other one, where there are two.
fn first_of(given: anyhow::Result<()>, taken: anyhow::Result<()>) -> anyhow::Result<()> {
    match (given, taken) {
        (Ok(()), taken) => taken,
        (given, Ok(())) => given,
        (Err(given), Err(taken)) if given.is::<Over>() => Err(taken),
        (Err(given), Err(taken)) if taken.is::<Over>() => Err(given),
        (_, taken) => taken,
    }
}

/// A peer whose reader left says so before it gives up, and is content; which of the two is seen first is chance.
fn unless_stopped(error: anyhow::Error, stream: &Stream) -> anyhow::Error {
    match stream.watch().error() {
        Some(stopped @ Error::Stopped { .. }) if Exit::from(&error) == Exit::Remote => {
            stopped.into()
        }
        _ => error,
    }
}

/// The other way has failed, and says why.
#[derive(Debug, thiserror::Error)]
#[error("the other direction ended")]
struct Over;

/// Sends stdin, unless it is to be left alone.
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

/// Everything from the first byte to the confirmation of the peer.
async fn give_all(write: &mut WriteHalf) -> anyhow::Result<()> {
    let mut source = Source::stdin().context("cannot read stdin")?;
    let name = source.describe().to_owned();
    let sent = carry::send_all_and_finish(&mut source, write).await;
    sent.map(drop).map_err(|error| explained(error, &name))
}

/// Receives to stdout, unless it is to be left alone.
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

/// Everything from the first byte to our confirmation.
async fn take_all(read: &mut ReadHalf) -> anyhow::Result<()> {
    let mut sink = Sink::stdout().context("cannot open stdout for writing")?;
    let name = sink.describe().to_owned();
    let received = carry::receive_all(read, &mut sink).await;
    received.map_err(|error| explained(error, &name))?;
    sink.close(false)
        .await
        .with_context(|| format!("cannot finish {name}"))?;
    // A reader behind a pipe sees the end now, though the other way goes on.
    let null = File::options().write(true).open("/dev/null");
    null.and_then(|null| Ok(dup2_stdout(null)?))
        .context("cannot close stdout")?;
    // Everything is where it belongs. A peer that is gone cannot be told; if there is more to send to it,
    // that fails for itself.
    let _ = read.confirm();
    Ok(())
}

fn end_other(over: &CancellationToken, result: &anyhow::Result<()>) {
    if result.is_err() {
        over.cancel();
    }
}
