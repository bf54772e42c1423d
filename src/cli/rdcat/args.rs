//! The command line of rdcat.

use std::{ffi::OsString, net::IpAddr, path::PathBuf};

use clap::{
    Parser,
    builder::{OsStringValueParser, TypedValueParser},
};

use crate::{
    Direction, StreamConfig,
    cli::args::{Agent, HostOptions, MessageOptions, Secret, StreamOptions, help, parse},
};

/// The command line of rdcat.
#[derive(Debug, Parser)]
#[command(
    name = "rdcat",
    version,
    about = "Writes files of other hosts to stdout, or joins stdin and stdout of two hosts",
    override_usage = "rdcat [OPTIONS] [user@]HOST:PATH...\n       rdcat [OPTIONS] --listen\n       rdcat [OPTIONS] TICKET",
    after_help = help::rdcat()
)]
pub(crate) struct RdcatArgs {
    /// The files, or a ticket. A ticket is a secret, so the operands appear in no message.
    #[arg(value_name = "HOST:PATH", value_parser = OsStringValueParser::new().map(Secret::new))]
    #[arg(conflicts_with_all = ["listen", "ticket_file"])]
    #[arg(help = "Files to write to stdout, in this order; or the TICKET of rdcat --listen")]
    pub(crate) operands: Vec<Secret>,

    /// Print a ticket, and wait for one peer that has it
    #[arg(short, long, conflicts_with = "ticket_file")]
    pub(crate) listen: bool,

    /// Read the ticket from the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) ticket_file: Option<PathBuf>,

    /// Send only: with a ticket, do not write to stdout
    #[arg(long, conflicts_with = "recv")]
    pub(crate) send: bool,

    /// Receive only: with a ticket, do not read stdin
    #[arg(long)]
    pub(crate) recv: bool,

    /// Listen on this address only [default: all addresses, IPv6 and IPv4]
    #[arg(long, value_name = "ADDR", value_parser = parse::address)]
    #[arg(requires = "listen", conflicts_with_all = ["operands", "ticket_file"])]
    pub(crate) bind: Option<IpAddr>,

    /// The options for connecting to other hosts.
    #[command(flatten)]
    pub(crate) hosts: HostOptions,

    /// The options for the stream.
    #[command(flatten)]
    pub(crate) stream: StreamOptions,

    /// The options for messages.
    #[command(flatten)]
    pub(crate) messages: MessageOptions,

    /// Run as an agent (used by rdcat itself)
    #[arg(long, hide = true, value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "guard")]
    pub(crate) agent: Option<Agent>,
}

impl RdcatArgs {
    /// Returns the operands as they were typed.
    pub(crate) fn files(&self) -> Vec<OsString> {
        let files = self.operands.iter();
        files.map(|operand| operand.text().to_owned()).collect()
    }

    /// Returns the configuration of the stream between the two ends of a ticket.
    pub(crate) fn stream_config(&self) -> StreamConfig {
        self.stream.config(match (self.send, self.recv) {
            (true, _) => Direction::Send,
            (_, true) => Direction::Receive,
            _ => Direction::Both,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Result<RdcatArgs, clap::Error> {
        RdcatArgs::try_parse_from([&["rdcat"], words].concat())
    }

    #[test]
    fn clap_accepts_the_definitions() {
        RdcatArgs::command().debug_assert();
    }

    #[test]
    fn files_and_tickets_are_operands() {
        let args = parse(&["-v", "h1:a b", ":-x"]).unwrap();
        assert_eq!(args.files(), ["h1:a b", ":-x"]);
        assert_eq!(args.stream_config().direction, Direction::Both);
        let args = parse(&["--send", "rdt1abc"]).unwrap();
        assert_eq!(args.stream_config().direction, Direction::Send);
        assert!(!format!("{args:?}").contains("rdt1abc"));
        let args = parse(&["-l", "--recv", "--bind", "[::1]", "-p", "7000-7001"]).unwrap();
        assert_eq!(args.stream_config().direction, Direction::Receive);
        assert_eq!(args.bind, Some("::1".parse().unwrap()));
        assert_eq!(args.hosts.ports, Some((7000, 7001)));
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for words in [
            &["-l", "rdt1abc"][..],
            &["-l", "h:x"],
            &["-l", "--ticket-file", "f"],
            &["rdt1abc", "--ticket-file", "f"],
            &["--send", "--recv", "rdt1abc"],
            &["--bind", "::1", "rdt1abc"],
            &["-v", "-q", "h:x"],
        ] {
            let error = parse(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}");
            assert!(!error.to_string().contains("rdt1abc"), "{error}");
        }
    }

    #[test]
    fn help_shows_files_tickets_and_exit_codes() {
        let help = RdcatArgs::command().render_long_help().to_string();
        for taught in ["rdcat fs1:", "rdcat -l", "RDCAT_TICKET", "Exit codes:"] {
            assert!(help.contains(taught), "{taught}:\n{help}");
        }
    }
}
