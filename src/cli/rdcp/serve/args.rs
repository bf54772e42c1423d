//! The options of `rdcp --serve`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::cli::args::parse;

/// The port of hdrdmacp, whose clients' command lines it may be in.
pub(super) const DEFAULT_PORT: u16 = 10470;

/// The most clients at a time without `--max-clients`.
pub(super) const DEFAULT_CLIENTS: u16 = 64;

/// The memory for all clients without `-m`: 16 MiB for each of [`DEFAULT_CLIENTS`].
pub(super) const DEFAULT_MEMORY: u64 = 1 << 30;

/// The time that copies have to end after SIGTERM without `--grace`.
pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(60);

/// The options of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Serve the files of a directory to clients that have a key, until SIGTERM
    #[arg(short, long, requires_all = ["root", "key_file"], conflicts_with_all = ["operands", "agent", "new_key"])]
    #[arg(conflicts_with_all = OF_CLIENTS)]
    pub(crate) serve: bool,

    /// Serve this directory: clients see nothing else
    #[arg(long, value_name = "DIR", requires = "serve")]
    pub(crate) root: Option<PathBuf>,

    /// Listen on this port, the only one that clients need; 0 takes a free one [default: 10470]
    #[arg(long, value_name = "PORT", requires = "serve")]
    pub(crate) listen_port: Option<u16>,

    /// Let clients read files and not change them
    #[arg(long, requires = "serve", conflicts_with = "write_only")]
    pub(crate) read_only: bool,

    /// Let clients write files and not read them
    #[arg(long, requires = "serve")]
    pub(crate) write_only: bool,

    /// Serve at most this many copies at a time; further ones wait for their turn [default: 64]
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_clients: Option<u16>,

    /// Use at most this much memory for the data of all copies, with K, M or G for powers of 1024 [default: 1G]
    #[arg(short, long, value_name = "SIZE", requires = "serve", value_parser = parse::size)]
    pub(crate) memory: Option<u64>,

    /// Write counts to FILE every 10 seconds, for the textfile collector of Prometheus' node exporter
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub(crate) metrics: Option<PathBuf>,

    /// Give running copies this much time after SIGTERM, for example 30 or 10m [default: 60s]
    #[arg(long, value_name = "SECS", requires = "serve", value_parser = parse::duration)]
    pub(crate) grace: Option<Duration>,

    /// Print a line for the key file of a server: NAME, and a new key
    #[arg(long, value_name = "NAME")]
    pub(crate) new_key: Option<String>,
}

/// The options of a copy, which a server takes from its clients.
const OF_CLIENTS: [&str; 23] = [
    "recursive",
    "archive",
    "no_target_directory",
    "parents",
    "dry_run",
    "no_clobber",
    "update",
    "skip_same",
    "delete",
    "exclude",
    "include",
    "resume",
    "checksum",
    "remove_source_files",
    "bwlimit",
    "fsync",
    "json",
    "ports",
    "here",
    "addresses",
    "rsh",
    "ssh_options",
    "remote_rdpipe",
];
