//! The program rdrecv: receives one stream, and writes it to stdout or a file.

pub(super) mod args;
mod output;

use std::{io, process::ExitCode};

use anyhow::Context;
use clap::Parser;

use self::output::Output;
use super::{
    args::{KeySource, RdrecvArgs, or_exit},
    shared::{
        message::Console,
        progress::is_on_terminal,
        report::{Listening, Report},
        run::{self, Run, explained},
    },
};
use crate::{Key, Stream, carry, process, reach};

/// Parses the command line, receives one stream, and prints how the run went. Returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let mut args = or_exit("rdrecv", RdrecvArgs::try_parse());
    let (key, hidden) = args.key.take();
    let console = Console::of_program("rdrecv", args.messages);
    run::main(&console, hidden, |run| receive(args, key, run))
}

async fn receive(args: RdrecvArgs, key: KeySource, mut run: Run) -> Report {
    let mut stream = match accept(&args, key, &mut run).await {
        Ok(stream) => stream,
        Err(error) => return run.failed(&error),
    };
    let terminal = is_on_terminal(&io::stdout(), args.output().is_some());
    let progress = run.connected(&stream, None, terminal);
    let result = take(&args, &mut stream, &mut run).await;
    drop(progress);
    run.end(stream, result).await
}

/// Listens, and waits for a peer that has the key.
async fn accept(args: &RdrecvArgs, key: KeySource, run: &mut Run) -> anyhow::Result<Stream> {
    let given = run::key(key, &run.console)?;
    let made = if given.is_none() {
        Some(Key::generate()?)
    } else {
        None
    };
    let key = given.or_else(|| made.as_ref().map(|made| made.key().clone()));
    let key = key.context("no key")?;
    let mut config = args.stream_config();
    config.keepalive_runtime = Some(run.control_runtime.clone());
    let ports = Some((args.port, args.port));
    let listener = reach::listen(args.bind, ports, &key, &config).await?;
    let bound = args.bind.filter(|address| !address.is_unspecified());
    let reach = bound.map_or_else(
        || run.console.host().to_owned(),
        |address| address.to_string(),
    );
    let port = listener.local_addr().port();
    Listening {
        reach: &reach,
        port,
        key: made.as_ref(),
    }
    .print(&run.console, args.port == 0);
    let stream = run.interruptible(listener.accept_or_mismatch()).await?;
    run.console.detail(&format!(
        "{} connected from {}",
        stream.peer(),
        stream.peer_addr()
    ));
    Ok(stream)
}

/// Receives everything into the output, from opening the output to confirming the bytes to the sender.
async fn take(args: &RdrecvArgs, stream: &mut Stream, run: &mut Run) -> anyhow::Result<()> {
    let name = args
        .output()
        .map_or_else(|| "stdout".to_owned(), |path| path.display().to_string());
    let watch = stream.watch();
    let opening = async {
        let output = carry::unless_interrupted(&watch, Output::open(args.output())).await?;
        output.with_context(|| format!("cannot open {name} for writing"))
    };
    let mut output = run.interruptible(opening).await?;
    let receiving = async {
        let received = carry::receive_all(stream, output.sink()).await;
        received.map_err(|error| explained(error, &name))
    };
    run.interruptible(receiving).await?;
    crate::faults::point("before-commit");
    output
        .commit(args.fsync)
        .await
        .with_context(|| format!("cannot finish {name}"))?;
    if let Err(error) = stream.confirm() {
        run.console.detail(&format!(
            "the output is complete, but the confirmation may not have reached the sender: {error}"
        ));
    }
    Ok(())
}
