//! The options of programs that run on several hosts, and the parsers of hosts and addresses.

use std::{net::IpAddr, path::PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum, builder::PossibleValue};

use crate::ssh::{
    deploy::DeployPolicy,
    launch::Remote,
    plan::{Addresses, unbracketed},
    protocol::{VERSION_TEXT, ViaSsh},
    quote,
};

/// The process of an agent that this program runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agent {
    /// Starts the worker, and kills the processes that the worker leaves behind.
    Guard,
    /// Does what its order says: runs a stage, or one side of a copy.
    Worker,
    /// Exits at once: this program speaks the version of the protocol that was named.
    Version,
}

impl ValueEnum for Agent {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Guard, Self::Worker, Self::Version]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Guard => "guard",
            Self::Worker => "worker",
            Self::Version => VERSION_TEXT,
        }))
    }
}

/// The options for connecting to other hosts: for ssh, and for the data.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostOptions {
    /// Listen for the data on this port, or on one of these, on every host [default: any free port]
    #[arg(short, long = "port", value_name = "PORT[-PORT]", value_parser = ports)]
    pub(crate) ports: Option<(u16, u16)>,

    /// Tell other hosts to connect to this machine at ADDR
    #[arg(short = 'H', long = "here", value_name = "ADDR", value_parser = host)]
    pub(crate) here: Option<String>,

    /// Connect to HOST for the data at these addresses only [default: those that HOST reports, then its name]
    #[arg(long = "addr", value_name = "HOST=ADDR[,ADDR]", value_parser = Addresses::parse)]
    pub(crate) addresses: Vec<Addresses>,

    /// Use this command instead of ssh; {host} in CMD stands for the host; without {host} the host is appended
    #[arg(short = 'e', long, value_name = "CMD", value_parser = shell_words)]
    rsh: Option<Words>,

    /// Pass this option to ssh, for example -oPort=2222 or '-F config'; may be given several times
    #[arg(long = "ssh-opt", value_name = "OPT", value_parser = shell_words, allow_hyphen_values = true)]
    ssh_options: Vec<Words>,

    /// Run PATH as rdpipe on the other hosts [default: the rdpipe in their $PATH, or this one: --deploy]
    #[arg(long, value_name = "PATH", value_parser = remote_program)]
    remote_rdpipe: Option<String>,

    /// Choose which hosts get this program, kept there in ~/.cache/rdpipe: auto sends it to those that have no rdpipe,
    /// or another version
    #[arg(
        long,
        value_enum,
        value_name = "auto|always|never",
        hide_possible_values = true
    )]
    #[arg(default_value = "auto", conflicts_with = "remote_rdpipe")]
    deploy: DeployPolicy,

    /// Choose which data goes through ssh and this machine, which is slower: auto is that between hosts that cannot
    /// connect to each other
    #[arg(
        long,
        value_enum,
        value_name = "auto|always|never",
        hide_possible_values = true
    )]
    #[arg(default_value = "auto")]
    pub(crate) via_ssh: ViaSsh,

    /// The ssh that runs as if the user had typed it.
    #[arg(skip)]
    own_ssh: Option<PathBuf>,
}

/// The words of one argument, split as a shell does.
#[derive(Debug, Clone)]
struct Words(Vec<String>);

impl HostOptions {
    /// Returns the settings for starting agents on other hosts.
    pub(crate) fn remote(&self) -> Remote {
        let words = self.ssh_options.iter().flat_map(|words| words.0.clone());
        Remote {
            rsh: self.rsh.clone().map(|words| words.0),
            ssh_options: words.collect(),
            program: self.remote_rdpipe.clone(),
            deploy: self.deploy,
            own_ssh: self.own_ssh.clone(),
        }
    }

    /// Makes ssh run as if the user had typed it, with these options before all others.
    /// Fails if there are options of ssh, and `--rsh` runs another program.
    pub(crate) fn run_users_ssh(
        &mut self,
        ssh: PathBuf,
        options: Vec<String>,
    ) -> anyhow::Result<()> {
        if self.rsh.is_some() && !options.is_empty() {
            anyhow::bail!(
                "{} is an option of ssh, which --rsh does not run",
                options[0]
            );
        }
        self.ssh_options.insert(0, Words(options));
        self.own_ssh = Some(ssh);
        Ok(())
    }

    /// Returns the address of `-H`, which replaces the addresses of this machine in a ticket.
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

/// Parses HOST: a name or an address. An IPv6 address may stand in brackets, which are removed.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let host = bracketed.unwrap_or(text);
    // The resolver checks the zone of a link-local address, as in `fe80::1%eth0`.
    let (address, zone) = host.split_once('%').unwrap_or((host, "-"));
    let is_v6 = address
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_ipv6())
        && !zone.is_empty();
    if bracketed.is_some() && !is_v6 {
        return Err("only an IPv6 address may stand in brackets".to_owned());
    }
    if host.contains([':', '[', ']']) && !is_v6 {
        return Err("give host and port as two arguments".to_owned());
    }
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err("give a host name or an address".to_owned());
    }
    if host.contains('@') {
        return Err("give the host without a user: rdsend does not log in".to_owned());
    }
    Ok(host.to_owned())
}

/// Parses the port that rdrecv listens on.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    let wrong = |_| "give the number of the port to listen on, or 0 for any free port".to_owned();
    text.parse().map_err(wrong)
}

/// Parses the port that rdsend connects to.
pub(crate) fn port_to_dial(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "give the number of the port where rdrecv listens, 1 to 65535".to_owned())
}

/// Parses `--bind`: an IPv4 or IPv6 address; an IPv6 address may stand in brackets.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = bracketed.unwrap_or(text).parse();
    address.map_err(|_| "give an IPv4 or IPv6 address of this host".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_are_names_or_addresses() {
        for (text, expected) in [
            ("hostB", "hostB"),
            ("a.example.org", "a.example.org"),
            ("10.0.0.1", "10.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[fe80::1%eth0]", "fe80::1%eth0"),
            ("fe80::1%eth0", "fe80::1%eth0"),
        ] {
            assert_eq!(host(text).as_deref(), Ok(expected));
        }
        for text in [
            "",
            "[]",
            "[hostB]",
            "[10.0.0.1]",
            "[::1",
            "::1]",
            "hostB:1",
            "10.0.0.1:1",
            "[::1]:1",
            "a b",
            "me@b",
            "fe80::1%",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
        assert_eq!(address("[::]"), Ok("::".parse().unwrap()));
        assert_eq!(address("127.0.0.1"), Ok("127.0.0.1".parse().unwrap()));
        assert!(address("hostB").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text: String) {
            let _ = host(&text);
            let _ = address(&text);
        }
    }
}
