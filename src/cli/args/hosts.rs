//! The options of programs that run on several hosts.

use std::net::IpAddr;

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::{StreamOptions, parse};
use crate::{
    Direction,
    ssh::{
        launch::Remote,
        plan::{Addresses, unbracketed},
        protocol::{StreamOrder, TransportOrder},
        quote,
    },
};

/// The process of an agent that this program runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    /// Starts the worker, and kills the processes that the worker leaves behind.
    Guard,
    /// Does what its order says: runs a stage, or one side of a copy.
    Worker,
}

/// The options for connecting to other hosts: for ssh, and for the data.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostOptions {
    /// Listen for the data on this port, or on one of these, on every host [default: any free port]
    #[arg(short, long = "port", value_name = "PORT[-PORT]", value_parser = ports)]
    pub(crate) ports: Option<(u16, u16)>,

    /// Tell other hosts to connect to this machine at ADDR
    #[arg(short = 'H', long = "here", value_name = "ADDR", value_parser = parse::host)]
    pub(crate) here: Option<String>,

    /// Connect to HOST for the data at these addresses only [default: those that HOST reports, then its name]
    #[arg(long = "addr", value_name = "HOST=ADDR[,ADDR]", value_parser = Addresses::parse)]
    pub(crate) addresses: Vec<Addresses>,

    /// Use this command instead of ssh; {host} in CMD stands for the host; without {host} the host is appended
    #[arg(long, value_name = "CMD", value_parser = shell_words)]
    rsh: Option<Words>,

    /// Pass this option to ssh, for example -oPort=2222 or '-F config'; may be given several times
    #[arg(long = "ssh-opt", value_name = "OPT", value_parser = shell_words, allow_hyphen_values = true)]
    ssh_options: Vec<Words>,

    /// Run PATH as rdpipe on the other hosts [default: the rdpipe in their $PATH]
    #[arg(long, value_name = "PATH", value_parser = remote_program)]
    remote_rdpipe: Option<String>,
}

/// The words of one argument, split as a shell does.
#[derive(Debug, Clone)]
struct Words(Vec<String>);

impl HostOptions {
    /// Returns the settings of streams for the agents.
    pub(crate) fn stream_order(&self, stream: &StreamOptions) -> StreamOrder {
        let StreamOptions {
            chunk, depth, rdma, ..
        } = stream;
        let config = stream.config(Direction::Both);
        StreamOrder {
            transport: TransportOrder::from(config.transport),
            chunk_bytes: chunk.map(|bytes| bytes as u64),
            depth: depth.and_then(|depth| u32::try_from(depth).ok()),
            timeout_ms: u64::try_from(config.timeout.as_millis()).unwrap_or(u64::MAX),
            ports: self.ports,
            device: rdma.device.clone(),
            ib_port: rdma.ib_port,
            gid_index: rdma.gid_index,
            traffic_class: config.rdma.traffic_class,
            service_level: config.rdma.service_level,
            pkey_index: config.rdma.pkey_index,
            busy_poll_us: rdma.busy_poll,
        }
    }

    /// Returns the settings for starting agents on other hosts.
    pub(crate) fn remote(&self) -> Remote {
        let words = self.ssh_options.iter().flat_map(|words| words.0.clone());
        Remote {
            rsh: self.rsh.clone().map(|words| words.0),
            ssh_options: words.collect(),
            program: self.remote_rdpipe.clone(),
        }
    }

    /// Returns the address of `-H`, which replaces the addresses of this machine in a ticket.
    ///
    /// # Errors
    ///
    /// Fails if `-H` is a name: a ticket holds addresses.
    pub(crate) fn here_address(&self) -> anyhow::Result<Option<IpAddr>> {
        let address = self.here().map(|here| here.parse()).transpose();
        address.context("-H: a ticket holds addresses; give an IP address instead of a name")
    }

    /// Returns the address of `-H`, without brackets.
    pub(crate) fn here(&self) -> Option<String> {
        self.here.as_deref().map(unbracketed)
    }
}

fn shell_words(text: &str) -> Result<Words, String> {
    match quote::split_words(text) {
        None => Err("a quote is not closed".to_owned()),
        Some(words) if words.is_empty() => Err("give at least one word".to_owned()),
        Some(words) => Ok(Words(words)),
    }
}

/// Parses `--remote-rdpipe`: a path that the login shell of every host can be given.
fn remote_program(path: &str) -> Result<String, String> {
    match quote::remote_path(path) {
        Some(_) => Ok(path.to_owned()),
        None => Err("a path with a line end cannot be passed to every login shell".to_owned()),
    }
}

/// Parses `-p`: one port or a range of ports.
fn ports(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err("give a port or a range of ports, for example 7691 or 7691-7699".to_owned()),
    }
}
