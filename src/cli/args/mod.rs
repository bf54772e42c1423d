//! The command lines of rdpipe, rdsend, rdrecv and rdcat.

pub(super) mod help;
mod key;
pub(super) mod parse;
mod rdma;

use std::{
    ffi::OsStr,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Parser, ValueEnum};

pub use super::rdcat::args::RdcatArgs;
pub use super::rdpipe::args::{Agent, HostOptions, RdpipeArgs, ReportOptions};
pub use key::{KEY_VARIABLE, KeyOptions, KeySource, LoadedKey, Secret};
pub use rdma::RdmaOptions;

use crate::config::{Direction, RdmaConfig, StreamConfig, TransportPolicy};

/// The command line of rdrecv.
#[derive(Debug, Parser)]
#[command(
    name = "rdrecv",
    version,
    about = "Receives one stream from rdsend on another host and writes it to stdout or a file",
    after_help = help::rdrecv()
)]
pub struct RdrecvArgs {
    /// TCP port to listen on; 0 takes a free one and says which
    #[arg(value_name = "PORT")]
    pub port: u16,

    /// KEY and `--key-file`.
    #[command(flatten)]
    pub key: KeyOptions,

    /// Output file, instead of stdout
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Output file, where KEY is not an argument
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub output: Option<PathBuf>,

    /// Address to listen on [default: all, IPv6 and IPv4]
    #[arg(long, value_name = "ADDR", value_parser = parse::address)]
    pub bind: Option<IpAddr>,

    /// Have the output file on the disk before confirming it to the sender
    #[arg(long)]
    pub fsync: bool,

    /// What both programs can be told about the stream.
    #[command(flatten)]
    pub stream: StreamOptions,

    /// What both programs can be told about messages.
    #[command(flatten)]
    pub messages: MessageOptions,
}

impl RdrecvArgs {
    /// Where the data goes; `None` is stdout.
    #[must_use]
    pub fn output(&self) -> Option<&Path> {
        file(self.output.as_deref().or(self.file.as_deref()))
    }

    /// The stream these arguments ask for.
    #[must_use]
    pub fn stream_config(&self) -> StreamConfig {
        self.stream.config(Direction::Receive)
    }
}

/// The command line of rdsend.
#[derive(Debug, Parser)]
#[command(
    name = "rdsend",
    version,
    about = "Sends stdin or a file to rdrecv on another host",
    after_help = help::rdsend()
)]
pub struct RdsendArgs {
    /// Host where rdrecv listens: a name, an IPv4 or an IPv6 address
    #[arg(value_name = "HOST", value_parser = parse::host)]
    pub host: String,

    /// TCP port where rdrecv listens
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// KEY and `--key-file`.
    #[command(flatten)]
    pub key: KeyOptions,

    /// Input file, instead of stdin
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Input file, where KEY is not an argument
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub input: Option<PathBuf>,

    /// How long to go on trying to connect [default: 3s]
    #[arg(long, value_name = "SECS", value_parser = parse::duration)]
    pub connect_timeout: Option<Duration>,

    /// What both programs can be told about the stream.
    #[command(flatten)]
    pub stream: StreamOptions,

    /// What both programs can be told about messages.
    #[command(flatten)]
    pub messages: MessageOptions,
}

impl RdsendArgs {
    /// Where the data comes from; `None` is stdin.
    #[must_use]
    pub fn input(&self) -> Option<&Path> {
        file(self.input.as_deref().or(self.file.as_deref()))
    }

    /// The stream these arguments ask for.
    #[must_use]
    pub fn stream_config(&self) -> StreamConfig {
        let mut config = self.stream.config(Direction::Send);
        if let Some(connect_timeout) = self.connect_timeout {
            config.connect_timeout = connect_timeout;
        }
        config
    }
}

/// `-` is the standard stream, as everywhere.
fn file(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| path.as_os_str() != OsStr::new("-"))
}

/// How the stream is set up. What is absent stays as [`StreamConfig`] has it.
#[derive(Debug, Clone, Args)]
pub struct StreamOptions {
    /// What carries the data: auto takes RDMA where both hosts have it and it works, else TCP
    #[arg(
        long,
        value_enum,
        value_name = "auto|rdma|tcp",
        hide_possible_values = true
    )]
    #[arg(default_value = "auto")]
    pub transport: Transport,

    /// Bytes in one chunk, with K, M or G for powers of 1024 [default: 512K over TCP, 2M over RDMA, 3M there with one processor]
    #[arg(long, value_name = "SIZE", value_parser = parse::chunk)]
    pub chunk: Option<usize>,

    /// Chunks that may be on their way at once [default: 16 over TCP, 4 over RDMA, 2 there with one processor]
    #[arg(long, value_name = "N", value_parser = parse::depth)]
    pub depth: Option<usize>,

    /// How long a silent peer counts as alive: 30, 0.5, 500ms, 2m [default: 30s]
    #[arg(long, value_name = "SECS", value_parser = parse::duration)]
    pub timeout: Option<Duration>,

    /// What concerns RDMA only.
    #[command(flatten)]
    pub rdma: RdmaOptions,
}

impl StreamOptions {
    /// The stream that these options ask for.
    #[must_use]
    pub fn config(&self, direction: Direction) -> StreamConfig {
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
pub enum Transport {
    /// RDMA where it works, otherwise TCP.
    Auto,
    /// RDMA or an error.
    Rdma,
    /// TCP, whatever the hardware.
    Tcp,
}

impl From<Transport> for TransportPolicy {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Auto => Self::Auto,
            Transport::Rdma => Self::Rdma,
            Transport::Tcp => Self::Tcp,
        }
    }
}

/// How much is said, and how.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct MessageOptions {
    /// Say how it went: transport, bytes, seconds, bandwidth
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,

    /// Say everything in JSON, one object a line, on stderr
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;
    use crate::config::{LONE_POOL, POOL};

    fn rdrecv(line: &str) -> Result<RdrecvArgs, clap::Error> {
        RdrecvArgs::try_parse_from(format!("rdrecv {line}").split_whitespace())
    }

    fn rdsend(line: &str) -> Result<RdsendArgs, clap::Error> {
        RdsendArgs::try_parse_from(format!("rdsend {line}").split_whitespace())
    }

    #[test]
    fn clap_finds_no_fault() {
        RdrecvArgs::command().debug_assert();
        RdsendArgs::command().debug_assert();
    }

    #[test]
    fn the_manual_works() {
        let args = rdrecv("12345 secret_key").unwrap();
        assert_eq!((args.port, args.output()), (12345, None));
        let args = rdsend("hostB 12345 secret_key").unwrap();
        assert_eq!(
            (args.host.as_str(), args.port, args.input()),
            ("hostB", 12345, None)
        );
    }

    #[test]
    fn files_come_with_and_without_a_key() {
        let copy = Some(Path::new("copy"));
        assert_eq!(rdrecv("1 key copy").unwrap().output(), copy);
        assert_eq!(rdrecv("1 -o copy").unwrap().output(), copy);
        assert_eq!(rdrecv("1 key --output copy").unwrap().output(), copy);
        assert_eq!(rdrecv("1 -o -").unwrap().output(), None);
        assert_eq!(rdsend("h 1 key copy").unwrap().input(), copy);
        assert_eq!(rdsend("h 1 -i copy").unwrap().input(), copy);
        assert_eq!(rdsend("-i copy h 1 --key-file k").unwrap().input(), copy);
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for line in ["1 key copy -o other", "1 -v -q"] {
            let error = rdrecv(line).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{line}");
            assert_eq!(error.exit_code(), 2);
        }
        assert_eq!(
            rdsend("h 1 key f -i g").unwrap_err().kind(),
            ErrorKind::ArgumentConflict
        );
        for line in [
            "",
            "port",
            "65536",
            "1 key file more",
            "1 --chunk 1K",
            "1 --depth 1",
        ] {
            assert_eq!(rdrecv(line).unwrap_err().exit_code(), 2, "{line}");
        }
        for line in [
            "h",
            "h 0 key",
            "h 1 key --bind ::",
            "h:1 2 key",
            "h 1 --transport ib",
        ] {
            assert_eq!(rdsend(line).unwrap_err().exit_code(), 2, "{line}");
        }
        assert_eq!(rdrecv("0").unwrap().port, 0);
    }

    #[test]
    fn options_reach_the_stream() {
        let line =
            "h 1 key --chunk 1MiB --depth 8 --timeout 2m --connect-timeout 0.5 --transport tcp";
        let config = rdsend(line).unwrap().stream_config();
        assert_eq!((config.chunk_bytes, config.depth), (1 << 20, 8));
        let rdma = config.rdma;
        assert_eq!((rdma.chunk_bytes, rdma.depth), (1 << 20, 8));
        assert_eq!(config.timeout, Duration::from_secs(120));
        assert_eq!(config.connect_timeout, Duration::from_millis(500));
        assert_eq!(config.transport, TransportPolicy::Tcp);
        assert_eq!(config.direction, Direction::Send);
    }

    #[test]
    fn absent_options_leave_the_defaults_that_the_help_names() {
        let default = StreamConfig::default();
        let config = rdrecv("1").unwrap().stream_config();
        assert_eq!(
            (config.chunk_bytes, config.depth),
            (default.chunk_bytes, default.depth)
        );
        assert_eq!(
            (config.rdma.chunk_bytes, config.rdma.depth),
            (default.rdma.chunk_bytes, default.rdma.depth)
        );
        assert_eq!(config.transport, default.transport);
        assert_eq!(config.direction, Direction::Receive);
        assert_eq!(
            rdrecv("1 --bind [::1]").unwrap().bind,
            Some("::1".parse().unwrap())
        );

        let help = RdsendArgs::command().render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let ((chunk, depth), (lone_chunk, lone_depth)) = (POOL, LONE_POOL);
        assert!(help.contains(&format!(
            "[default: {}K over TCP, {}M over RDMA, {}M there with one processor]",
            default.chunk_bytes >> 10,
            chunk >> 20,
            lone_chunk >> 20
        )));
        assert!(help.contains(&format!(
            "[default: {} over TCP, {depth} over RDMA, {lone_depth} there with one processor]",
            default.depth
        )));
        assert!(help.contains(&format!("[default: {}s]", default.timeout.as_secs())));
        assert!(help.contains(&format!(
            "[default: {}s]",
            default.connect_timeout.as_secs()
        )));
    }

    #[test]
    fn debug_shows_no_key() {
        let args = rdrecv("1 tell_nobody").unwrap();
        assert!(!format!("{args:?}").contains("tell_nobody"));
    }
}
