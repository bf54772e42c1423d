//! The command line of rdsend.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;

use crate::{
    Direction, StreamConfig,
    cli::args::{self, KeyOptions, MessageOptions, StreamOptions, help, parse},
};

/// The command line of rdsend.
#[derive(Debug, Parser)]
#[command(
    name = "rdsend",
    version,
    about = "Sends stdin or a file to rdrecv on another host",
    after_help = help::rdsend()
)]
pub(crate) struct RdsendArgs {
    /// Host where rdrecv listens: a name, an IPv4 or an IPv6 address
    #[arg(value_name = "HOST", value_parser = parse::host)]
    pub(crate) host: String,

    /// TCP port where rdrecv listens
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,

    /// The options for the key: KEY and `--key-file`.
    #[command(flatten)]
    pub(crate) key: KeyOptions,

    /// File to read instead of stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Read FILE instead of stdin; use it where KEY is not an argument
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) input: Option<PathBuf>,

    /// Repeat failed attempts to connect for this long [default: 3s]
    #[arg(long, value_name = "SECS", value_parser = parse::duration)]
    pub(crate) connect_timeout: Option<Duration>,

    /// The options for the stream.
    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    /// The options for messages.
    #[command(flatten)]
    pub(crate) messages: MessageOptions,
}

impl RdsendArgs {
    /// Returns the path of the input; `None` is stdin.
    #[must_use]
    pub(crate) fn input(&self) -> Option<&Path> {
        args::file(self.input.as_deref().or(self.file.as_deref()))
    }

    /// Returns the configuration of the stream.
    #[must_use]
    pub(crate) fn stream_config(&self) -> StreamConfig {
        let mut config = self.stream.config(Direction::Send);
        if let Some(connect_timeout) = self.connect_timeout {
            config.retry_for = connect_timeout;
            config.connect_timeout = connect_timeout.saturating_add(config.handshake_timeout);
        }
        config
    }
}
