//! The command line of rdrecv.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Parser;

use crate::{
    Direction, StreamConfig,
    cli::args::{self, KeyOptions, MessageOptions, StreamOptions, help, parse},
};

/// The command line of rdrecv.
#[derive(Debug, Parser)]
#[command(
    name = "rdrecv",
    version,
    about = "Receives one stream from rdsend on another host and writes it to stdout or a file",
    after_help = help::rdrecv()
)]
pub(crate) struct RdrecvArgs {
    /// TCP port to listen on; 0 takes a free one and says which
    #[arg(value_name = "PORT")]
    pub(crate) port: u16,

    /// KEY and `--key-file`.
    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// Output file, instead of stdout
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Output file, where KEY is not an argument
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) output: Option<PathBuf>,

    /// Listen on this address only [default: all, IPv6 and IPv4]
    #[arg(long, value_name = "ADDR", value_parser = parse::address)]
    pub(crate) bind: Option<IpAddr>,

    /// fsync output files before reporting success: the sender hears of it after that
    #[arg(long)]
    pub(crate) fsync: bool,

    /// What both programs can be told about the stream.
    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    /// What both programs can be told about messages.
    #[command(flatten)]
    pub(crate) messages: MessageOptions,
}

impl RdrecvArgs {
    /// Where the data goes; `None` is stdout.
    #[must_use]
    pub(crate) fn output(&self) -> Option<&Path> {
        args::file(self.output.as_deref().or(self.file.as_deref()))
    }

    /// The stream these arguments ask for.
    #[must_use]
    pub(crate) fn stream_config(&self) -> StreamConfig {
        self.stream.config(Direction::Receive)
    }
}
