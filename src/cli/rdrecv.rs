//! The program rdrecv: receives one stream, and writes it to stdout or a file.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Parser;

use super::{
    args::{KeySource, or_exit},
    shared::{
        message::Console,
        progress::is_on_terminal,
        report::{Listening, Report},
        run::{self, Run, explained},
    },
};
use crate::{
    Direction, Key, Stream, StreamConfig, carry,
    cli::args::{self, KeyOptions, MessageOptions, StreamOptions, help, hosts, version},
    fd::{OutputTarget, Sink},
    options::FlowOptions,
    process, reach,
};

/// Parses the command line, receives one stream, and prints how the run went. Returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let mut args = or_exit("rdrecv", RdrecvArgs::try_parse());
    let (key, hidden) = args.key.take();
    args.stream.is_bulk = true;
    let console = if args.output().is_some() {
        Console::of_program
    } else {
        Console::beside_data
    }("rdrecv", &args.messages);
    console.note_encryption(&args.stream);
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
    run.left = output.left();
    let receiving = async {
        let received = carry::receive(stream, output.sink(), args.flow).await;
        received.map_err(|error| explained(error, &name))
    };
    run.interruptible(receiving).await?;
    crate::faults::point("before-commit");
    if args.fsync {
        // The sync of the directory can fail after the file has its name.
        run.left.clear();
    }
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

/// The output of rdrecv: stdout, or a file that is written as by `>` of rdpipe.
pub(crate) enum Output {
    /// The standard output.
    Stdout(Sink),
    /// A file; where it is safe, an existing file is replaced only at the end.
    File(OutputTarget),
}

impl Output {
    /// Opens `path`, or stdout if there is no path.
    /// Fails with the error of the system. A file that exists is unchanged then.
    pub(crate) async fn open(path: Option<&Path>) -> io::Result<Self> {
        match path {
            None => Sink::stdout().map(Self::Stdout),
            Some(path) => OutputTarget::create(path).await.map(Self::File),
        }
    }

    /// Returns the sink that writes the bytes.
    pub(crate) fn sink(&mut self) -> &mut Sink {
        match self {
            Self::Stdout(sink) => sink,
            Self::File(target) => target.sink(),
        }
    }

    /// Returns what a failure leaves of the output, in words that follow the reason.
    fn left(&self) -> String {
        let Self::File(target) = self else {
            return String::new();
        };
        match target.replaces() {
            Some(true) => format!("; {target} is as it was before"),
            Some(false) => format!("; {target} was not made"),
            None => target.left(),
        }
    }

    /// Completes the output. A file that is to be replaced is unchanged before this call; after it the output is whole.
    /// Fails with errors of the last writes, which some file systems report only now, and of the rename.
    pub(crate) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Stdout(sink) => sink.close(fsync).await,
            Self::File(target) => target.commit(fsync).await,
        }
    }
}

/// The command line of rdrecv.
#[derive(Debug, Parser)]
#[command(
    name = "rdrecv",
    version,
    long_version = version::long(),
    about = "Receives one stream from rdsend on another host and writes it to stdout or a file",
    after_help = help::rdrecv()
)]
pub(crate) struct RdrecvArgs {
    /// TCP port to listen on; 0 takes a free port and prints it
    #[arg(value_name = "PORT", value_parser = hosts::port)]
    pub(crate) port: u16,

    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// File to write instead of stdout
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Write FILE instead of stdout; use it where KEY is not an argument
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) output: Option<PathBuf>,

    /// Listen on this address only [default: all addresses, IPv6 and IPv4]
    #[arg(long, value_name = "ADDR", value_parser = hosts::address)]
    pub(crate) bind: Option<IpAddr>,

    /// fsync output files before reporting success, and before confirming them to the sender
    #[arg(long)]
    pub(crate) fsync: bool,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    #[command(flatten)]
    pub(crate) flow: FlowOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,
}

impl RdrecvArgs {
    /// Returns the path of the output; `None` is stdout.
    pub(crate) fn output(&self) -> Option<&Path> {
        args::file(self.output.as_deref().or(self.file.as_deref()))
    }

    pub(crate) fn stream_config(&self) -> StreamConfig {
        self.stream.config(Direction::Receive)
    }
}
