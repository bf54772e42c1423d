//! Where the ticket comes from: the argument, `--ticket-file` or the environment, in this order.

use std::{env, fs::File, io, os::unix::fs::PermissionsExt, path::PathBuf};

use anyhow::Context;

use crate::{
    cli::{
        args::{RdcatArgs, Secret},
        shared::{
            message::Console,
            secret::{blank_argument, blank_environment},
        },
    },
    key,
    reach::ticket::Ticket,
};

/// The environment variable that holds a ticket.
const TICKET_VARIABLE: &str = "RDCAT_TICKET";

/// Where the ticket is to be had.
#[derive(Debug)]
pub(super) enum TicketSource {
    /// The user gave none.
    None,
    /// This text.
    Text(Secret),
    /// The first line of this file.
    File(PathBuf),
    /// It stands beside other operands.
    Among,
}

impl TicketSource {
    /// Takes the ticket from the arguments or the environment, then hides both from `ps`.
    ///
    /// Call it first of all, before there are threads; the second part says why the ticket could not be hidden,
    /// worth a warning.
    pub(super) fn take(args: &mut RdcatArgs) -> (Self, io::Result<()>) {
        let variable = env::var_os(TICKET_VARIABLE).map(Secret::new);
        let tickets = args.operands.iter().filter(|operand| is_ticket(operand));
        let hidden = tickets
            .map(|ticket| blank_argument(ticket.text()))
            .chain([blank_environment(TICKET_VARIABLE)])
            .collect();
        (Self::choose(args, variable), hidden)
    }

    /// The first that there is.
    fn choose(args: &mut RdcatArgs, variable: Option<Secret>) -> Self {
        if args.operands.iter().any(is_ticket) {
            return match args.operands.pop() {
                Some(ticket) if args.operands.is_empty() => Self::Text(ticket),
                _ => Self::Among,
            };
        }
        match args.ticket_file.take() {
            Some(path) => Self::File(path),
            None if !args.operands.is_empty() || args.listen => Self::None,
            None => variable.map_or(Self::None, Self::Text),
        }
    }

    /// Reads the ticket.
    ///
    /// # Errors
    ///
    /// When there is none, or it is damaged, in words that do not repeat it.
    pub(super) fn load(self, console: &Console) -> anyhow::Result<Ticket> {
        match self {
            Self::None | Self::Among => anyhow::bail!("no ticket was given"),
            Self::Text(text) => Ok(Ticket::parse(text.text().as_encoded_bytes())?),
            Self::File(path) => {
                let name = path.display();
                let cannot = || format!("cannot read the ticket file {name}");
                let mut file = File::open(&path).with_context(cannot)?;
                let metadata = file.metadata().with_context(cannot)?;
                let mode = metadata.is_file().then(|| metadata.permissions().mode());
                let exposed = mode.and_then(|mode| key::exposure(&path, mode, "ticket file"));
                if let Some(warning) = exposed {
                    console.warn(&warning);
                }
                let line = key::first_line(&mut file).with_context(cannot)?;
                // One that is too long is none.
                let line = line.unwrap_or_default();
                Ticket::parse(&line).with_context(|| format!("in the ticket file {name}"))
            }
        }
    }
}

/// Whether an operand is a ticket, or was meant to be one. A file has a colon. A key for rdrecv, which somebody took for
/// a ticket, is a secret as well.
fn is_ticket(operand: &Secret) -> bool {
    let text = operand.text().as_encoded_bytes();
    !text.contains(&b':') && (Ticket::resembles(text) || text.starts_with(b"rdk1"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn chosen(words: &[&str], variable: Option<&str>) -> TicketSource {
        let mut args = RdcatArgs::parse_from([&["rdcat"], words].concat());
        TicketSource::choose(&mut args, variable.map(|text| Secret::new(text.into())))
    }

    fn text(source: TicketSource) -> String {
        match source {
            TicketSource::Text(text) => text.text().to_string_lossy().into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_argument_comes_first_then_the_file_then_the_environment() {
        assert_eq!(text(chosen(&["rdt1a"], Some("rdt1v"))), "rdt1a");
        let file = chosen(&["--ticket-file", "f"], Some("rdt1v"));
        assert!(matches!(file, TicketSource::File(_)));
        assert_eq!(text(chosen(&[], Some("rdt1v"))), "rdt1v");
        assert!(matches!(chosen(&[], None), TicketSource::None));
    }

    #[test]
    fn files_are_no_tickets() {
        for words in [
            &["rdt1:x"][..],
            &["h:rdt1abc"],
            &["h:x", ":y"],
            &["-l"],
            &["nonsense"],
        ] {
            let source = chosen(words, Some("rdt1v"));
            assert!(matches!(source, TicketSource::None), "{words:?}");
        }
        let both = chosen(&["rdt1a", "h:x"], None);
        assert!(matches!(both, TicketSource::Among));
    }

    #[test]
    fn an_empty_variable_is_no_ticket() {
        let console = Console::new("rdcat", crate::cli::args::MessageOptions::default());
        let error = chosen(&[], Some("")).load(&console).unwrap_err();
        assert!(error.to_string().contains("no ticket"), "{error}");
    }
}
