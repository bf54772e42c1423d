//! The sources of the key and of the ticket: the argument, the option, then the environment.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::PathBuf,
};

use anyhow::Context;
use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use rustix::process::geteuid;
use zeroize::Zeroizing;

use crate::{
    cli::shared::{
        message::Console,
        secret::{blank_argument, blank_environment},
    },
    key::{self, Key, KeyError},
    reach::ticket::Ticket,
};

/// The environment variable that holds a key.
pub(crate) const KEY_VARIABLE: &str = "RDPIPE_KEY";

/// The arguments that give a key.
///
/// clap does not read the environment variable: its help could show the value, and it could not
/// distinguish a variable that is set from an argument KEY.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeyOptions {
    /// The argument KEY, until `take` takes it.
    #[arg(value_name = "KEY", value_parser = OsStringValueParser::new().map(Secret::new))]
    #[arg(help = "Key that both ends share [env: RDPIPE_KEY]")]
    key: Option<Secret>,

    /// Read the key from the first line of FILE; then name the file for the data with -i or -o
    // An argument KEY beside --key-file is most often meant as the file for the data. Using it as the key would be
    // wrong.
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,
}

impl KeyOptions {
    /// Takes the key from the arguments or the environment, then overwrites it in both, so that `ps` does not show it.
    ///
    /// Call this function first in `main`, before other threads start. The second part of the result is an error if
    /// the key could not be overwritten: show it as a warning.
    pub(crate) fn take(&mut self) -> (KeySource, io::Result<()>) {
        let argument = self
            .key
            .as_ref()
            .map_or(Ok(()), |key| blank_argument(&key.0));
        let (variable, blanked) = take_variable();
        (self.choose(variable), argument.and(blanked))
    }

    /// Returns the first source that the user gave.
    fn choose(&mut self, variable: Option<Secret>) -> KeySource {
        match (self.key.take(), self.key_file.take()) {
            (Some(key), _) => KeySource::Text(key),
            (None, Some(path)) => KeySource::File(path),
            (None, None) => variable.map_or(KeySource::None, KeySource::Text),
        }
    }
}

/// Takes the key from the environment, then overwrites it there, so that `ps` does not show it. The second part of the
/// result is an error if it could not be overwritten: show it as a warning.
///
/// Call this function first in `main`, before other threads start.
pub(crate) fn take_variable() -> (Option<Secret>, io::Result<()>) {
    let variable = env::var_os(KEY_VARIABLE).map(Secret);
    (variable, blank_environment(KEY_VARIABLE))
}

/// The place from which the key is read.
#[derive(Debug)]
pub(crate) enum KeySource {
    /// The user gave no key.
    None,
    Text(Secret),
    /// The key is the first line of this file.
    File(PathBuf),
}

/// A key, and a warning for the user.
#[derive(Debug)]
pub(crate) struct LoadedKey {
    /// The key; stretched, unless rdpipe made it.
    pub(crate) key: Key,
    /// A sentence that warns about the key file: it belongs to another user, and this user is root.
    pub(crate) warning: Option<String>,
}

impl KeySource {
    /// Reads and stretches the key; returns `None` if no key was given. Stretching takes tens of milliseconds.
    /// Fails with the errors of [`Key::parse`] and [`Key::from_file`].
    pub(crate) fn load(self) -> Result<Option<LoadedKey>, KeyError> {
        match self {
            Self::None => Ok(None),
            Self::Text(text) => {
                let key = Key::parse(text.0.as_encoded_bytes())?;
                Ok(Some(LoadedKey { key, warning: None }))
            }
            Self::File(path) => {
                let (key, warning) = Key::from_file(path)?;
                Ok(Some(LoadedKey { key, warning }))
            }
        }
    }
}

/// A secret argument: `Debug` does not show it, and it is wiped from memory when dropped.
#[derive(Clone)]
pub(crate) struct Secret(OsString);

impl Secret {
    /// Wraps `text` as a secret.
    pub(crate) fn new(text: OsString) -> Self {
        Self(text)
    }

    pub(crate) fn text(&self) -> &OsStr {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        drop(Zeroizing::new(std::mem::take(&mut self.0).into_vec()));
    }
}

/// The place from which the ticket is read.
#[derive(Debug)]
pub(crate) enum TicketSource {
    /// The user gave no ticket.
    None,
    Text(Secret),
    /// The ticket is the first line of this file.
    File(PathBuf),
    /// A ticket was given together with other operands, which is a usage error.
    Among,
}

impl TicketSource {
    /// Takes the ticket from the operands, the file of `--ticket-file` or the environment `variable`, then overwrites
    /// it in arguments and environment, so that `ps` does not show it. Without operands the variable counts, unless the
    /// program `listens`.
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

/// Returns true if an operand is a ticket, or was meant as one: it has no colon, which every file of a host has. A key
/// for rdrecv that a user gives in place of a ticket counts too, because it is a secret as well.
fn is_ticket(operand: &Secret) -> bool {
    let text = operand.text().as_encoded_bytes();
    !text.contains(&b':') && (Ticket::resembles(text) || text.starts_with(b"rdk1"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::RdcatArgs;

    fn options(key: Option<&str>, key_file: Option<&str>) -> KeyOptions {
        KeyOptions {
            key: key.map(|key| Secret(key.into())),
            key_file: key_file.map(PathBuf::from),
        }
    }

    fn chosen(key: Option<&str>, key_file: Option<&str>, variable: Option<&str>) -> KeySource {
        options(key, key_file).choose(variable.map(|key| Secret(key.into())))
    }

    #[test]
    fn the_argument_comes_first_then_the_file_then_the_environment() {
        let secret = |source: KeySource| match source {
            KeySource::Text(key) => key.0.to_string_lossy().into_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(secret(chosen(Some("a"), None, Some("v"))), "a");
        assert!(matches!(
            chosen(None, Some("f"), Some("v")),
            KeySource::File(_)
        ));
        assert_eq!(secret(chosen(None, None, Some("v"))), "v");
        assert!(matches!(chosen(None, None, None), KeySource::None));
    }

    #[test]
    fn an_empty_key_is_an_error_and_not_an_absent_key() {
        assert!(chosen(None, None, None).load().unwrap().is_none());
        // `RDPIPE_KEY=$UNSET rdrecv 1` must fail: rdrecv must not make a key instead.
        assert!(matches!(
            chosen(None, None, Some("")).load(),
            Err(KeyError::Empty)
        ));
        assert!(matches!(
            chosen(Some(""), None, Some("v")).load(),
            Err(KeyError::Empty)
        ));
        assert!(
            chosen(None, Some("/nonexistent"), Some("v"))
                .load()
                .is_err()
        );
    }

    #[test]
    fn argument_file_and_environment_give_the_same_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret_key\n").unwrap();
        let path = file.path().to_str().unwrap();
        let load = |source: KeySource| *source.load().unwrap().unwrap().key.secret();
        let key = load(chosen(Some("secret_key"), None, None));
        assert_eq!(load(chosen(None, Some(path), None)), key);
        assert_eq!(load(chosen(None, None, Some("secret_key"))), key);
    }

    fn chosen_ticket(words: &[&str], variable: Option<&str>) -> TicketSource {
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
    fn the_ticket_of_the_argument_comes_first_then_the_file_then_the_environment() {
        assert_eq!(text(chosen_ticket(&["rdt1a"], Some("rdt1v"))), "rdt1a");
        let file = chosen_ticket(&["--ticket-file", "f"], Some("rdt1v"));
        assert!(matches!(file, TicketSource::File(_)));
        assert_eq!(text(chosen_ticket(&[], Some("rdt1v"))), "rdt1v");
        assert!(matches!(chosen_ticket(&[], None), TicketSource::None));
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
            let source = chosen_ticket(words, Some("rdt1v"));
            assert!(matches!(source, TicketSource::None), "{words:?}");
        }
        let both = chosen_ticket(&["rdt1a", "h:x"], None);
        assert!(matches!(both, TicketSource::Among));
    }

    #[test]
    fn an_empty_variable_is_no_ticket() {
        let console = Console::new("rdcat", &crate::cli::args::MessageOptions::default());
        let error = chosen_ticket(&[], Some("")).load(&console).unwrap_err();
        assert!(error.to_string().contains("no ticket"), "{error}");
    }
}
