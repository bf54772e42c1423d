//! The options that say how a stream is set up.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{RdmaOptions, parse};
use crate::config::{Direction, RdmaConfig, StreamConfig, TransportPolicy};

/// How the stream is set up. What is absent stays as [`StreamConfig`] has it.
#[derive(Debug, Clone, Args)]
pub(crate) struct StreamOptions {
    /// What carries the data: auto takes RDMA where both hosts have it and it works, else TCP
    #[arg(
        long,
        value_enum,
        value_name = "auto|rdma|tcp",
        hide_possible_values = true
    )]
    #[arg(default_value = "auto")]
    pub(crate) transport: TransportChoice,

    /// Bytes in one chunk, with K, M or G for powers of 1024 [default: 512K over TCP, 2M over RDMA, 3M there with one processor]
    #[arg(long, value_name = "SIZE", value_parser = parse::chunk)]
    pub(crate) chunk: Option<usize>,

    /// Chunks that may be on their way at once [default: 16 over TCP, 4 over RDMA, 2 there with one processor]
    #[arg(long, value_name = "N", value_parser = parse::depth)]
    pub(crate) depth: Option<usize>,

    /// Treat the peer as dead after this much silence: 30, 0.5, 500ms, 2m [default: 30s]
    #[arg(long, value_name = "SECS", value_parser = parse::duration)]
    pub(crate) timeout: Option<Duration>,

    /// What concerns RDMA only.
    #[command(flatten)]
    pub(crate) rdma: RdmaOptions,
}

impl StreamOptions {
    /// The stream that these options ask for.
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

/// The values of `--transport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportChoice {
    /// RDMA where it works, otherwise TCP.
    Auto,
    /// RDMA or an error.
    Rdma,
    /// TCP, whatever the hardware.
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
