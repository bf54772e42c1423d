//! The options that set up a stream.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{RdmaOptions, parse};
use crate::config::{Direction, RdmaConfig, StreamConfig, TransportPolicy};

/// The options that set up a stream. An absent option leaves the default of [`StreamConfig`].
#[derive(Debug, Clone, Args)]
pub(crate) struct StreamOptions {
    /// Choose what carries the data: auto uses RDMA if both hosts have it and a message has crossed it, otherwise TCP
    #[arg(
        long,
        value_enum,
        value_name = "auto|rdma|tcp",
        hide_possible_values = true
    )]
    #[arg(default_value = "auto")]
    pub(crate) transport: TransportChoice,

    /// Set the size of a chunk in bytes, with K, M or G for powers of 1024 [default: 512K over TCP, 2M over RDMA, 3M there with one processor]
    #[arg(long, value_name = "SIZE", value_parser = parse::chunk)]
    pub(crate) chunk: Option<usize>,

    /// Set the number of chunks in flight [default: 16 over TCP, 4 over RDMA, 2 there with one processor]
    #[arg(long, value_name = "N", value_parser = parse::depth)]
    pub(crate) depth: Option<usize>,

    /// Treat the peer as dead after this much silence, for example 30, 0.5, 500ms or 2m [default: 30s]
    #[arg(long, value_name = "SECS", value_parser = parse::duration)]
    pub(crate) timeout: Option<Duration>,

    /// The options for RDMA.
    #[command(flatten)]
    pub(crate) rdma: RdmaOptions,
}

impl StreamOptions {
    /// Returns the configuration of a stream in this direction with these options.
    #[must_use]
    pub(crate) fn config(&self, direction: Direction) -> StreamConfig {
        let default = StreamConfig::default();
        StreamConfig {
            chunk_bytes: self.chunk.unwrap_or(default.chunk_bytes),
            depth: self.depth.unwrap_or(default.depth),
            rdma: RdmaConfig {
                chunk_bytes: self.chunk.unwrap_or(default.rdma.chunk_bytes),
                depth: self.depth.unwrap_or(default.rdma.depth),
                ..self.rdma.config()
            },
            timeout: self.timeout.unwrap_or(default.timeout),
            transport: self.transport.into(),
            direction,
            ..default
        }
    }
}

/// The value of `--transport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportChoice {
    /// RDMA if both hosts have it and a message has crossed it, otherwise TCP.
    Auto,
    /// RDMA; an error if it is not possible.
    Rdma,
    /// TCP, even if both hosts have RDMA.
    Tcp,
}

impl From<TransportChoice> for TransportPolicy {
    fn from(choice: TransportChoice) -> Self {
        match choice {
            TransportChoice::Auto => Self::Auto,
            TransportChoice::Rdma => Self::Rdma,
            TransportChoice::Tcp => Self::Tcp,
        }
    }
}
