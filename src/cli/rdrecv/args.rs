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
    /// TCP port to listen on; 0 takes a free port and prints it
    #[arg(value_name = "PORT")]
    pub(crate) port: u16,

    /// The options for the key: KEY and `--key-file`.
    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// File to write instead of stdout
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Write FILE instead of stdout; use it where KEY is not an argument
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) output: Option<PathBuf>,

    /// Listen on this address only [default: all addresses, IPv6 and IPv4]
    #[arg(long, value_name = "ADDR", value_parser = parse::address)]
    pub(crate) bind: Option<IpAddr>,

    /// fsync output files before reporting success, and before confirming them to the sender
    #[arg(long)]
    pub(crate) fsync: bool,

    /// The options for the stream.
    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    /// The options for messages.
    #[command(flatten)]
    pub(crate) messages: MessageOptions,
}

impl RdrecvArgs {
    /// Returns the path of the output; `None` is stdout.
    #[must_use]
    pub(crate) fn output(&self) -> Option<&Path> {
        args::file(self.output.as_deref().or(self.file.as_deref()))
    }

    /// Returns the configuration of the stream.
    #[must_use]
    pub(crate) fn stream_config(&self) -> StreamConfig {
        self.stream.config(Direction::Receive)
    }
}
