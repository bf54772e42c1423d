//! The options that set up a stream, choose among RDMA devices and mark their packets.

use std::time::Duration;

use clap::{
    Args, ValueEnum,
    builder::{NonEmptyStringValueParser, RangedU64ValueParser},
};

use super::parse;
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

    /// Set the size of a chunk in bytes, with K, M or G for powers of 1024 [default: 512K over TCP, 2M over RDMA, 3M
    /// there with one processor]
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

// Each option names this heading itself: `next_help_heading` would also apply to the options after the RDMA options.
const HEADING: &str = "RDMA (each end has its own settings; no effect over TCP)";

/// The options for RDMA. Each end has its own settings, and they have no effect over TCP.
///
/// A build without RDMA accepts these options too, so the same command line works with every build.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RdmaOptions {
    /// Use only this device, as `ibv_devices` names it [default: the fastest that reaches the peer]
    #[arg(long, help_heading = HEADING, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) device: Option<String>,

    /// Use only this port of the device, from 1 [default: any active port]
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(1..))]
    pub(crate) ib_port: Option<u8>,

    /// Use only this row of the port's GID table [default: RoCE v2 before v1, IPv4 before IPv6]
    #[arg(long, help_heading = HEADING, value_name = "N")]
    pub(crate) gid_index: Option<u8>,

    /// Set the traffic class of the packets: on RoCE v2 four times the DSCP, so 104 for DSCP 26 [default: 0]
    #[arg(long, help_heading = HEADING, value_name = "N")]
    pub(crate) traffic_class: Option<u8>,

    /// Set the service level of the packets, 0 to 15: on RoCE the VLAN priority, 0 to 7 [default: 0]
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = RangedU64ValueParser::<u8>::new().range(..=15))]
    pub(crate) service_level: Option<u8>,

    /// Use this row of the port's partition key table; on InfiniBand both ends must be in the partition [default: 0]
    #[arg(long, help_heading = HEADING, value_name = "N")]
    pub(crate) pkey_index: Option<u16>,

    /// Poll this many microseconds for a small message before waiting for an event, up to 10000; 0 saves processor time
    /// [default: up to 50, up to 1000 on a slow machine, while that finds messages]
    #[arg(long, help_heading = HEADING, value_name = "US", value_parser = RangedU64ValueParser::<u32>::new().range(..=10_000))]
    pub(crate) busy_poll: Option<u32>,
}

impl RdmaOptions {
    /// Returns the configuration that these options describe.
    pub(super) fn config(&self) -> RdmaConfig {
        let default = RdmaConfig::default();
        RdmaConfig {
            device: self.device.clone(),
            port: self.ib_port,
            gid_index: self.gid_index,
            traffic_class: self.traffic_class.unwrap_or(default.traffic_class),
            service_level: self.service_level.unwrap_or(default.service_level),
            pkey_index: self.pkey_index.unwrap_or(default.pkey_index),
            busy_poll: self
                .busy_poll
                .map(|time| Duration::from_micros(time.into())),
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::args::{RdrecvArgs, RdsendArgs};

    fn rdsend(line: &str) -> Result<RdmaConfig, clap::Error> {
        let line = format!("rdsend h 1 key {line}");
        RdsendArgs::try_parse_from(line.split_whitespace()).map(|args| args.stream_config().rdma)
    }

    #[test]
    fn every_option_reaches_the_configuration() {
        let options = "--device mlx5_1 --ib-port 2 --gid-index 3 --traffic-class 104 --service-level 15 --pkey-index 300 --busy-poll 20";
        let line = format!("rdrecv 1 key {options}");
        let args = RdrecvArgs::try_parse_from(line.split_whitespace()).unwrap();
        for rdma in [rdsend(options).unwrap(), args.stream_config().rdma] {
            assert_eq!(rdma.device.as_deref(), Some("mlx5_1"));
            assert_eq!((rdma.port, rdma.gid_index), (Some(2), Some(3)));
            assert_eq!((rdma.traffic_class, rdma.service_level), (104, 15));
            assert_eq!(rdma.pkey_index, 300);
            assert_eq!(rdma.busy_poll, Some(Duration::from_micros(20)));
        }
    }

    #[test]
    fn without_options_every_port_is_a_candidate() {
        let rdma = rdsend("").unwrap();
        assert_eq!((rdma.device, rdma.port, rdma.gid_index), (None, None, None));
        assert_eq!((rdma.traffic_class, rdma.service_level), (0, 0));
        assert_eq!(rdma.pkey_index, 0);
        assert_eq!(rdma.busy_poll, None);
    }

    #[test]
    fn a_value_that_no_device_has_is_a_usage_error() {
        for line in [
            "--device=",
            "--ib-port 0",
            "--ib-port 256",
            "--gid-index 256",
            "--gid-index -1",
            "--traffic-class 256",
            "--service-level 16",
            "--pkey-index 65536",
            "--busy-poll 10001",
        ] {
            assert_eq!(rdsend(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn the_help_lists_the_rdma_options_under_their_own_heading() {
        for mut command in [RdrecvArgs::command(), RdsendArgs::command()] {
            let help = command.render_help().to_string();
            let (general, rdma) = help.split_once("\nRDMA (").expect(&help);
            assert!(rdma.contains("--device <NAME>") && rdma.contains("--pkey-index <N>"));
            for other in ["--verbose", "--json", "--version", "--timeout"] {
                assert!(general.contains(other) && !rdma.contains(other), "{other}");
            }
        }
    }
}
