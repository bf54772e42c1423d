//! The sources of the ticket: the argument, `--ticket-file`, then the environment.

use std::{env, fs::File, io, os::unix::fs::MetadataExt, path::PathBuf};

use anyhow::Context;
use rustix::process::geteuid;

use super::Secret;
use crate::{
    cli::shared::{
        message::Console,
        secret::{blank_argument, blank_environment},
    },
    key,
    reach::ticket::Ticket,
};

/// The place from which the ticket is read.
#[derive(Debug)]
pub(crate) enum TicketSource {
    /// The user gave no ticket.
    None,
    /// The ticket is this text.
    Text(Secret),
    /// The ticket is the first line of this file.
    File(PathBuf),
    /// A ticket was given together with other operands, which is a usage error.
    Among,
}

impl TicketSource {
    /// Takes the ticket from the operands, the file of `--ticket-file` or the environment `variable`, then overwrites it in arguments
    /// and environment, so that `ps` does not show it. Without operands the variable counts, unless the program `listens`.
    ///
    /// Call this function first in `main`, before other threads start. The second part of the result is an error if
    /// the ticket could not be overwritten: show it as a warning.
    pub(crate) fn take(
        operands: &mut Vec<Secret>,
        file: Option<PathBuf>,
        listens: bool,
        variable: &str,
    ) -> (Self, io::Result<()>) {
        let value = env::var_os(variable).map(Secret::new);
        let tickets = operands.iter().filter(|operand| is_ticket(operand));
        let hidden = tickets
            .map(|ticket| blank_argument(ticket.text()))
            .chain([blank_environment(variable)])
            .collect();
        (Self::choose(operands, file, listens, value), hidden)
    }

    /// Returns the first source that the user gave.
    fn choose(
        operands: &mut Vec<Secret>,
        file: Option<PathBuf>,
        listens: bool,
        variable: Option<Secret>,
    ) -> Self {
        if operands.iter().any(is_ticket) {
            return match operands.pop() {
                Some(ticket) if operands.is_empty() => Self::Text(ticket),
                _ => Self::Among,
            };
        }
        match file {
            Some(path) => Self::File(path),
            None if !operands.is_empty() || listens => Self::None,
            None => variable.map_or(Self::None, Self::Text),
        }
    }

    /// Reads the ticket.
    ///
    /// # Errors
    ///
    /// Fails if there is no ticket, or if it is damaged. The message does not repeat the ticket.
    pub(crate) fn load(self, console: &Console) -> anyhow::Result<Ticket> {
        match self {
            Self::None | Self::Among => anyhow::bail!("no ticket was given"),
            Self::Text(text) => Ok(Ticket::parse(text.text().as_encoded_bytes())?),
            Self::File(path) => {
                let name = path.display();
                let cannot = || format!("cannot read the ticket file {name}");
                let mut file = File::open(&path).with_context(cannot)?;
                let metadata = file.metadata().with_context(cannot)?;
                if metadata.is_file() {
                    let reader = geteuid().as_raw();
                    let (mode, owner) = (metadata.mode(), metadata.uid());
                    let protected = key::protection(&path, "ticket file", mode, owner, reader);
                    let warning = protected.map_err(|reason| {
                        anyhow::anyhow!("the ticket file {name} is not used: {reason}")
                    })?;
                    if let Some(warning) = warning {
                        console.warn(&warning);
                    }
                }
                let line = key::first_line(&mut file).with_context(cannot)?;
                // A line that is too long is no ticket.
                let line = line.unwrap_or_default();
                Ticket::parse(&line).with_context(|| format!("in the ticket file {name}"))
            }
        }
    }
}

/// Returns true if an operand is a ticket, or was meant as one: it has no colon, which every file of a host has. A key for rdrecv
/// that a user gives in place of a ticket counts too, because it is a secret as well.
fn is_ticket(operand: &Secret) -> bool {
    let text = operand.text().as_encoded_bytes();
    !text.contains(&b':') && (Ticket::resembles(text) || text.starts_with(b"rdk1"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::RdcatArgs;

    fn chosen(words: &[&str], variable: Option<&str>) -> TicketSource {
        let mut args = RdcatArgs::parse_from([&["rdcat"], words].concat());
        let variable = variable.map(|text| Secret::new(text.into()));
        TicketSource::choose(&mut args.operands, args.ticket_file, args.listen, variable)
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
    fn a_file_is_not_taken_for_a_ticket() {
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
