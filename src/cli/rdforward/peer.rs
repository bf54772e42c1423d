//! The other end of a tunnel, as the command line names it: an agent over ssh, a server, or a ticket.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use anyhow::Context;

use crate::{
    Key,
    cli::{
        args::{Secret, TicketSource},
        server::key_file::load_client_key,
        shared::message::Console,
    },
    reach::ticket::Ticket,
    ssh::plan::StageHost,
};

/// The other end of a tunnel, and what is needed to reach it.
#[derive(Debug)]
pub(super) enum ForwardPeer {
    /// An agent on another host, over ssh or what replaces it. The place is never this machine, and never a server.
    Host(StageHost),
    /// `rdforward serve`.
    Server {
        /// The host, as it was typed.
        host: String,
        port: u16,
        key: Key,
    },
    /// `rdforward --listen`.
    Ticket(Ticket),
}

/// The other end of a tunnel, before keys and tickets are read.
#[derive(Debug)]
pub(super) enum NamedPeer {
    Host(StageHost),
    /// The host and the port of a server.
    Server(String, u16),
    Ticket(TicketSource),
}

impl NamedPeer {
    /// Finds out which end the operands and the ticket name.
    pub(super) fn of(operands: &[Secret], ticket: TicketSource) -> Result<Self, String> {
        match (ticket, operands) {
            (TicketSource::Among, _) => {
                Err("a ticket names the other end alone; remove the other operands".to_owned())
            }
            (TicketSource::None, [operand]) => Self::parse(operand.text()),
            (TicketSource::None, []) => Err(EXPECTED.to_owned()),
            (TicketSource::None, [_, ..]) => Err(format!("there is one other end; {EXPECTED}")),
            (ticket, _) => Ok(Self::Ticket(ticket)),
        }
    }

    fn parse(operand: &OsStr) -> Result<Self, String> {
        let shown = operand.to_string_lossy();
        // A colon at the end splits an operand that has none of its own.
        let segment = [operand.as_bytes(), b":"].concat();
        let (place, rest) =
            StageHost::split(&segment).map_err(|fault| format!("{shown}: {fault}"))?;
        let rest = rest.strip_suffix(b":");
        match (place, rest) {
            (StageHost::Here, _) => Err(format!("{shown} is no other host; {EXPECTED}")),
            (place, None) => Ok(Self::Host(place)),
            (StageHost::Host { destination, host }, Some(port)) if is_number(port) => {
                if destination != host {
                    return Err(format!(
                        "{shown}: HOST:PORT is a server, which has no users; its key names the client"
                    ));
                }
                let port = std::str::from_utf8(port)
                    .ok()
                    .and_then(|port| port.parse().ok());
                let port = port.filter(|&port| port != 0);
                let port = port.ok_or_else(|| {
                    format!("{shown}: the port of a server is a number from 1 to 65535")
                })?;
                Ok(Self::Server(host, port))
            }
            (_, Some(_)) => Err(format!(
                "{shown} is no host; {EXPECTED}; an IPv6 address stands in brackets"
            )),
        }
    }

    /// Reads the key or the ticket.
    /// Fails if there is none, or if it cannot be used.
    pub(super) fn load(
        self,
        key_file: Option<&std::path::Path>,
        variable: Option<&Secret>,
        console: &Console,
    ) -> anyhow::Result<ForwardPeer> {
        match self {
            Self::Host(place) => Ok(ForwardPeer::Host(place)),
            Self::Ticket(ticket) => ticket.load(console).map(ForwardPeer::Ticket),
            Self::Server(host, port) => {
                let key = load_client_key(key_file, variable, console)?;
                let key = key.with_context(|| format!(
                    "the server {host}:{port} needs a key; give --key-file FILE with the line of this client in the server's key file, or set RDPIPE_KEY"
                ))?;
                Ok(ForwardPeer::Server { host, port, key })
            }
        }
    }
}

const EXPECTED: &str =
    "give [user@]HOST, HOST:PORT of rdforward serve, or the ticket of rdforward --listen";

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(operand: &str) -> String {
        match NamedPeer::of(&[Secret::new(operand.into())], TicketSource::None) {
            Ok(NamedPeer::Host(StageHost::Host { destination, host })) => {
                format!("{destination}/{host}")
            }
            Ok(NamedPeer::Server(host, port)) => format!("server {host} {port}"),
            Ok(other) => panic!("{operand}: {other:?}"),
            Err(error) => error,
        }
    }

    #[test]
    fn a_host_with_a_port_is_a_server() {
        for (operand, expected) in [
            ("db1", "db1/db1"),
            ("me@db1", "me@db1/db1"),
            ("[fd00::2]", "fd00::2/fd00::2"),
            ("me@[fe80::2%eth0]", "me@fe80::2%eth0/fe80::2%eth0"),
            ("db1:10471", "server db1 10471"),
            ("10.0.0.1:1", "server 10.0.0.1 1"),
            ("[::1]:7", "server ::1 7"),
        ] {
            assert_eq!(shown(operand), expected);
        }
    }

    #[test]
    fn what_is_no_other_end_is_refused_with_a_reason() {
        for (operand, words) in [
            ("", "is no other host"),
            (":", "is no other host"),
            ("::1", "is no other host"),
            ("fd00::2", "stands in brackets"),
            ("db1:", "is no host"),
            ("db1:/data", "is no host"),
            ("db1:x", "is no host"),
            ("db1:0", "from 1 to 65535"),
            ("db1:65536", "from 1 to 65535"),
            ("me@db1:7", "has no users"),
            ("-oProxyCommand=x", "an option of ssh"),
            ("[db1]", "brackets are for an IPv6 address"),
            ("two words", "not a valid name"),
        ] {
            let text = shown(operand);
            assert!(text.contains(words), "{operand}: {text}");
        }
        let two = ["a", "b"].map(|host| Secret::new(host.into()));
        let error = NamedPeer::of(&two, TicketSource::None).unwrap_err();
        assert!(error.contains("one other end"), "{error}");
        let error = NamedPeer::of(&[], TicketSource::None).unwrap_err();
        assert!(error.contains("give [user@]HOST"), "{error}");
    }

    #[test]
    fn a_server_needs_a_key() {
        let console = Console::new("rdforward", &crate::cli::args::MessageOptions::default());
        let server = || NamedPeer::Server("db1".to_owned(), 7);
        let error = server().load(None, None, &console).unwrap_err().to_string();
        assert!(
            error.contains("db1:7") && error.contains("--key-file"),
            "{error}"
        );
        let variable = Secret::new("secret".into());
        let peer = server().load(None, Some(&variable), &console).unwrap();
        assert!(matches!(peer, ForwardPeer::Server { port: 7, .. }));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "client1 secret\n").unwrap();
        let peer = server().load(Some(file.path()), None, &console).unwrap();
        assert!(matches!(peer, ForwardPeer::Server { .. }));
        assert!(!format!("{peer:?}").contains("secret"));
    }
}
