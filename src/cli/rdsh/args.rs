//! The command line of rdsh: that of ssh, and long options of its own. Pure, no I/O.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser};

use crate::cli::args::{HostOptions, StreamOptions, help, version};

/// The command line of rdsh as clap knows it: the options that ssh does not have, the host and the command.
#[derive(Debug, Parser)]
#[command(
    name = "rdsh",
    version,
    long_version = version::long(),
    about = "Runs a command on another host as ssh does, and carries its stdin and stdout at link speed",
    override_usage = "rdsh [OPTIONS OF ssh] [OPTIONS] [user@]HOST COMMAND...",
    after_help = help::rdsh()
)]
pub(crate) struct RdshArgs {
    /// The host, as ssh takes it.
    #[arg(
        value_name = "HOST",
        help = "Where to run the command, as ssh takes it: [user@]HOST, a name of ssh's configuration, or \
                ssh://[user@]HOST[:PORT]"
    )]
    pub(crate) destination: String,

    /// Words of the command, joined by spaces; the login shell on HOST runs it
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,

    /// Print how the run went: transport and addresses; a second time: how ssh is called, too
    #[arg(long, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(flatten)]
    pub(crate) hosts: HostOptions,

    #[command(flatten)]
    pub(crate) stream: StreamOptions,
}

impl RdshArgs {
    /// Returns the definition of the command line: letters belong to ssh, so no option has one. An option that is given
    /// several times has its last value, as one of `RDSH_OPTIONS` may be.
    pub(crate) fn definition() -> Command {
        let command = <Self as CommandFactory>::command();
        command
            .args_override_self(true)
            .disable_version_flag(true)
            .disable_help_flag(true)
            .mut_args(|arg| arg.short(None::<char>))
            .arg(clap::arg!(--version "Print version").action(ArgAction::Version))
            .arg(clap::arg!(-h --help "Print help").action(ArgAction::Help))
    }

    /// Parses the words that are not for ssh.
    /// Fails if there is an unknown option, or no host and command.
    pub(crate) fn parse(words: &SshLine) -> Result<Self, clap::Error> {
        let own = [OsStr::new("rdsh")].into_iter().map(OsStr::to_owned);
        let own = own.chain(words.own.iter().cloned());
        let operands = words.destination.iter().chain(&words.command).cloned();
        let words = own.chain([OsString::from("--")]).chain(operands);
        Self::from_arg_matches(&Self::definition().try_get_matches_from(words)?)
    }

    /// Returns the command as one line for the login shell.
    pub(crate) fn line(&self) -> Vec<u8> {
        let words: Vec<_> = self.command.iter().map(|word| word.as_bytes()).collect();
        words.join(&b' ')
    }
}

/// The words of a command line, sorted as ssh reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SshLine {
    /// The options for ssh, in their order, without the letters that rdsh carries out itself.
    pub(crate) ssh: Vec<OsString>,
    /// The options of rdsh itself.
    pub(crate) own: Vec<OsString>,
    /// The host.
    pub(crate) destination: Option<OsString>,
    pub(crate) command: Vec<OsString>,
    /// Whether the command gets no stdin (`-n`).
    pub(crate) without_stdin: bool,
    /// What only ssh itself does, if the line asks for it.
    pub(crate) task: Option<SshTask>,
}

/// What only ssh itself does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SshTask {
    /// Something beside the data of a command: ssh itself runs in place of rdsh. A terminal, a subsystem such as that of
    /// sftp, a question about ssh.
    Run,
    /// An option that makes no sense for a command whose data rdsh carries, and what to do.
    Refuse(&'static str),
}

/// The letters of ssh that have no value.
const FLAGS: &[u8] = b"1246AaCfGgKkMNnqsTtVvXxYy";

/// The letters of ssh that have a value.
const VALUES: &[u8] = b"BbcDEeFIiJLlmOopPQRSWw";

/// What ssh says about a letter that it does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SshLineError {
    /// The letter is none of ssh's.
    #[error("-{0} is no option of ssh; rdsh --help lists those of rdsh")]
    Unknown(char),
    /// The value of the letter is missing.
    #[error("-{0} needs a value")]
    NoValue(char),
}

impl SshLine {
    /// Sorts the words of a command line.
    /// Fails at an option that ssh does not know, or whose value is missing.
    pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, SshLineError> {
        let mut line = Self::default();
        let mut words = words.into_iter();
        let mut has_options = true;
        while let Some(word) = words.next() {
            let bytes = word.as_bytes();
            if has_options && bytes == b"--" {
                has_options = false;
            } else if has_options && bytes.starts_with(b"--") {
                let takes_value = takes_value(&word);
                line.own.push(word);
                line.own.extend(takes_value.then(|| words.next()).flatten());
            } else if has_options && bytes.len() > 1 && bytes[0] == b'-' {
                line.letters(&bytes[1..], &mut words)?;
            } else if line.destination.is_none() {
                line.destination = Some(word);
                // As ssh does, which looks for options behind the host as well.
                has_options = true;
            } else {
                line.command.push(word);
                line.command.extend(words);
                break;
            }
        }
        if line.task.is_none() && line.destination.is_some() && line.has_no_command() {
            line.task = Some(SshTask::Refuse(
                "rdsh runs a COMMAND behind the host, and opens no login; use ssh for that",
            ));
        }
        Ok(line)
    }

    /// Returns the words for an ssh in place of rdsh.
    pub(crate) fn for_ssh(&self) -> impl Iterator<Item = &OsString> {
        let operands = self.destination.iter().chain(&self.command);
        self.ssh.iter().chain(operands)
    }

    fn has_no_command(&self) -> bool {
        // ssh opens a login as well if the line for the shell is empty.
        self.command.iter().all(|word| word.is_empty()) && self.command.len() < 2
    }

    /// Sorts the letters of one word, the last of which may have a value in the rest of the word or in the next one.
    fn letters(
        &mut self,
        letters: &[u8],
        words: &mut impl Iterator<Item = OsString>,
    ) -> Result<(), SshLineError> {
        for (at, &letter) in letters.iter().enumerate() {
            let name = char::from(letter);
            let word = OsString::from(format!("-{name}"));
            if FLAGS.contains(&letter) {
                self.flag(letter, word);
            } else if VALUES.contains(&letter) {
                let rest = &letters[at + 1..];
                let value = match rest {
                    [] => words.next().ok_or(SshLineError::NoValue(name))?,
                    rest => OsString::from_vec(rest.to_vec()),
                };
                self.see(task(letter));
                self.ssh.extend([word, value]);
                return Ok(());
            } else if letter == b'h' {
                self.own.push(word);
            } else {
                return Err(SshLineError::Unknown(name));
            }
        }
        Ok(())
    }

    fn flag(&mut self, letter: u8, word: OsString) {
        self.see(task(letter));
        self.without_stdin |= letter == b'n';
        self.ssh.push(word);
    }

    /// Keeps the first task: what the line asks for first is what the message is about. One for ssh itself goes before.
    fn see(&mut self, task: Option<SshTask>) {
        match (self.task, task) {
            (Some(SshTask::Run), _) | (Some(_), None | Some(SshTask::Refuse(_))) => {}
            (_, task) => self.task = task,
        }
    }
}

/// Returns true if a long option has its value in the next word.
fn takes_value(word: &OsStr) -> bool {
    let name = word.to_str().and_then(|word| word.strip_prefix("--"));
    RdshArgs::definition().get_arguments().any(|arg| {
        arg.get_long().is_some() && arg.get_long() == name && arg.get_action().takes_values()
    })
}

/// Returns what a letter asks for that rdsh does not do itself.
fn task(letter: u8) -> Option<SshTask> {
    let refuse = |text| Some(SshTask::Refuse(text));
    match letter {
        b't' | b's' | b'G' | b'V' | b'Q' | b'O' | b'W' => Some(SshTask::Run),
        b'L' => refuse("rdsh forwards no ports; use rdforward -L, or ssh"),
        b'R' => refuse("rdsh forwards no ports; use rdforward -R, or ssh"),
        b'D' => refuse("rdsh forwards no ports; use rdforward -D, or ssh"),
        b'w' => refuse("rdsh forwards no tunnel devices; use ssh -w"),
        b'N' => refuse("rdsh runs a command; use rdforward or ssh -N to forward ports alone"),
        b'f' => refuse("rdsh does not go into the background; use & of the shell, or ssh -f"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> SshLine {
        SshLine::parse(words.iter().map(OsString::from)).unwrap()
    }

    fn parse(words: &[&str]) -> RdshArgs {
        RdshArgs::parse(&line(words)).unwrap()
    }

    #[test]
    fn options_of_ssh_and_of_rdsh_stand_before_and_behind_the_host() {
        let sorted = line(&[
            "-vvp22",
            "--port",
            "7691",
            "-l",
            "me",
            "h1",
            "-oA=b",
            "--addr=h1=::1",
            "-4",
            "rsync",
            "--server",
            "-e.iLs",
            "-L",
        ]);
        let ssh = ["-v", "-v", "-p", "22", "-l", "me", "-o", "A=b", "-4"];
        assert_eq!(sorted.ssh, ssh);
        assert_eq!(sorted.own, ["--port", "7691", "--addr=h1=::1"]);
        assert_eq!(sorted.destination.as_deref(), Some(OsStr::new("h1")));
        assert_eq!(sorted.command, ["rsync", "--server", "-e.iLs", "-L"]);
        assert_eq!((sorted.task, sorted.without_stdin), (None, false));
        let args = RdshArgs::parse(&sorted).unwrap();
        assert_eq!(args.hosts.ports, Some((7691, 7691)));
        assert_eq!(args.line(), b"rsync --server -e.iLs -L");
    }

    #[test]
    fn two_dashes_end_the_options_before_the_host_and_behind_it() {
        assert_eq!(
            parse(&["--", "h1", "-4", "--", "-x", "a b"]).line(),
            b"-x a b"
        );
        assert_eq!(parse(&["-n", "h1", "echo", "", "x"]).line(), b"echo  x");
        assert!(line(&["-nq", "h1", "true"]).without_stdin);
    }

    #[test]
    fn what_only_ssh_does_is_for_ssh_or_refused() {
        for words in [
            &["-t", "h", "top"][..],
            &["-V"],
            &["-G", "h"],
            &["-sN", "h", "sftp"],
        ] {
            assert_eq!(line(words).task, Some(SshTask::Run), "{words:?}");
        }
        for (words, text) in [
            (&["-L", "1:a:2", "h", "x"][..], "rdforward -L"),
            (&["-R1:a:2", "h", "x"], "rdforward -R"),
            (&["-vD9", "h", "x"], "rdforward -D"),
            (&["-Nf", "h"], "to forward ports alone"),
            (&["-f", "h", "x"], "into the background"),
            (&["h"], "no login"),
            (&["h", ""], "no login"),
        ] {
            let Some(SshTask::Refuse(why)) = line(words).task else {
                panic!("{words:?}");
            };
            assert!(why.contains(text), "{why}");
        }
    }

    #[test]
    fn an_option_that_ssh_does_not_know_is_an_error() {
        let error = |words: &[&str]| SshLine::parse(words.iter().map(OsString::from)).unwrap_err();
        assert_eq!(error(&["-vZ", "h"]), SshLineError::Unknown('Z'));
        assert_eq!(error(&["-p"]), SshLineError::NoValue('p'));
        assert!(RdshArgs::parse(&line(&["--no-such", "h", "x"])).is_err());
        assert!(RdshArgs::parse(&line(&[])).is_err());
    }

    #[test]
    fn the_last_of_several_values_counts() {
        let args = parse(&["--port", "1", "--port=2", "h", "x"]);
        assert_eq!(args.hosts.ports, Some((2, 2)));
    }
}
