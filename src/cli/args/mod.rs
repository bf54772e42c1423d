//! The command lines of rdpipe, rdsend, rdrecv and rdcat.

mod exit_codes;
pub(super) mod help;
mod key;
#[cfg(test)]
mod options;
pub(super) mod parse;
mod rdma;
mod stream;
#[cfg(test)]
mod tests;

use std::{ffi::OsStr, path::Path};

use clap::Args;

pub(crate) use super::rdcat::args::RdcatArgs;

pub(crate) use super::rdpipe::args::{Agent, HostOptions, RdpipeArgs};
pub(crate) use super::{rdrecv::args::RdrecvArgs, rdsend::args::RdsendArgs};
#[cfg(doc)]
pub(crate) use exit_codes::EXIT_CODES;
pub(crate) use key::{KeyOptions, KeySource, Secret};
pub(crate) use rdma::RdmaOptions;
pub(crate) use stream::StreamOptions;

/// `-` is the standard stream, as everywhere.
pub(crate) fn file(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| path.as_os_str() != OsStr::new("-"))
}

/// How much is said, and how.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct MessageOptions {
    /// Print how it went: transport, bytes, seconds, bandwidth
    #[arg(short, long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Print errors only
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Report in JSON: every message as one object a line, on stderr
    #[arg(long)]
    pub(crate) json: bool,
}
