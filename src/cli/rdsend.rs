//! The program rdsend: sends stdin or a file to rdrecv on another host.

use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::{Parser, ValueHint};

use super::{
    args::{KeySource, or_exit},
    shared::{
        message::Console,
        progress::is_on_terminal,
        report::Report,
        run::{self, Run, explained},
    },
};
use crate::{
    Direction, KeyError, Stream, StreamConfig, carry,
    cli::args::{self, KeyOptions, MessageOptions, StreamOptions, help, hosts, version},
    connect,
    fd::{Source, bytes_left},
    options::{self, FlowOptions},
    process,
};

/// Parses the command line, sends the input, and prints how the run went. Returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    process::prepare();
    let mut args = or_exit("rdsend", RdsendArgs::try_parse());
    let (key, hidden) = args.key.take();
    args.stream.is_bulk = true;
    let console = Console::of_program("rdsend", &args.messages);
    console.note_encryption(&args.stream);
    run::main(&console, hidden, |run| send(args, key, run))
}

async fn send(args: RdsendArgs, key: KeySource, mut run: Run) -> Report {
    let mut stream = match dial(&args, key, &mut run).await {
        Ok(stream) => stream,
        Err(error) => return run.failed(&error),
    };
    let terminal = is_on_terminal(&io::stdin(), args.input().is_some());
    let progress = run.connected(&stream, size(&args), terminal);
    let result = give(&args, &mut stream, &mut run).await;
    drop(progress);
    run.end(stream, result).await
}

async fn dial(args: &RdsendArgs, key: KeySource, run: &mut Run) -> anyhow::Result<Stream> {
    let key = run::key(key, &run.console)?.ok_or(KeyError::Missing)?;
    let mut config = args.stream_config();
    config.keepalive_runtime = Some(run.control_runtime.clone());
    let stream = run
        .interruptible(connect((args.host.as_str(), args.port), &key, &config))
        .await?;
    run.console.detail(&format!(
        "connected to {} at {}",
        stream.peer(),
        stream.peer_addr()
    ));
    Ok(stream)
}

/// Returns the number of bytes of the input if it is a regular file.
fn size(args: &RdsendArgs) -> Option<u64> {
    let Some(path) = args.input() else {
        return bytes_left(io::stdin().as_fd());
    };
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file);
    metadata.map(|metadata| metadata.len())
}

/// Sends the whole input, from the first byte to the receiver's confirmation.
async fn give(args: &RdsendArgs, stream: &mut Stream, run: &mut Run) -> anyhow::Result<()> {
    let mut source = match args.input() {
        None => Source::stdin().context("cannot read stdin")?,
        Some(path) => {
            Source::open(path).with_context(|| format!("cannot read {}", path.display()))?
        }
    };
    let name = source.describe().to_owned();
    let sending = async {
        let sent = carry::send_and_finish(&mut source, stream, args.flow).await;
        sent.map_err(|error| explained(error, &name))
    };
    run.interruptible(sending).await.map(drop)
}

/// The command line of rdsend.
#[derive(Debug, Parser)]
#[command(
    name = "rdsend",
    version,
    long_version = version::long(),
    about = "Sends stdin or a file to rdrecv on another host",
    after_help = help::rdsend()
)]
pub(crate) struct RdsendArgs {
    /// Host where rdrecv listens: a name, an IPv4 or an IPv6 address
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname, value_parser = hosts::host)]
    pub(crate) host: String,

    /// TCP port where rdrecv listens
    #[arg(value_name = "PORT", value_parser = hosts::port_to_dial)]
    pub(crate) port: u16,

    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// File to read instead of stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Read FILE instead of stdin; use it where KEY is not an argument
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) input: Option<PathBuf>,

    /// Repeat failed attempts to connect for this long [default: 3s]
    #[arg(long, value_name = "SECS", value_parser = options::duration)]
    pub(crate) connect_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    #[command(flatten)]
    pub(crate) flow: FlowOptions,

    #[command(flatten)]
    pub(crate) messages: MessageOptions,
}

impl RdsendArgs {
    /// Returns the path of the input; `None` is stdin.
    pub(crate) fn input(&self) -> Option<&Path> {
        args::file(self.input.as_deref().or(self.file.as_deref()))
    }

    pub(crate) fn stream_config(&self) -> StreamConfig {
        let mut config = self.stream.config(Direction::Send);
        if let Some(connect_timeout) = self.connect_timeout {
            config.retry_for = connect_timeout;
            config.connect_timeout = connect_timeout.saturating_add(config.handshake_timeout);
        }
        config
    }
}
