//! The command that starts the agent of a stage: over ssh, over the program of `--rsh`, or on this machine.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use super::StageHost;
use crate::ssh::quote;

/// The user's options about how other hosts are reached.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remote {
    /// The words of `--rsh`; none runs ssh.
    pub(crate) rsh: Option<Vec<String>>,
    /// The words of `--ssh-opt`.
    pub(crate) ssh_options: Vec<String>,
    /// The path of `--remote-rdpipe`.
    pub(crate) program: Option<String>,
}

/// A command that starts an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The program and its arguments: at least the program.
    pub(crate) argv: Vec<OsString>,
    /// How the command reaches the host.
    pub(crate) kind: LaunchKind,
    /// The name of the host in messages.
    pub(crate) host: String,
    /// The destination argument of ssh and `ssh-copy-id`: `host` or `user@host`.
    pub(crate) destination: String,
}

/// How a [`Launch`] reaches its host. Each kind fails in its own way and gets its own explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaunchKind {
    /// Over ssh.
    Ssh,
    /// Over the program of `--rsh`.
    Rsh,
    /// On this machine, without a program between.
    Here,
}

impl Remote {
    /// Returns the command that starts the agent at `place`. `own` is the path of this program, for stages that run
    /// on this machine. None for a server: no command starts it.
    pub(crate) fn launch(&self, place: &StageHost, own: &Path) -> Option<Launch> {
        let launch = |kind, argv: Vec<OsString>, host: &str, destination: &str| {
            Some(Launch {
                argv,
                kind,
                host: host.to_owned(),
                destination: destination.to_owned(),
            })
        };
        match place {
            StageHost::Here => {
                let argv = vec![own.as_os_str().to_owned(), AGENT.into()];
                launch(LaunchKind::Here, argv, "this machine", "")
            }
            StageHost::Host { destination, host } => match &self.rsh {
                Some(rsh) => launch(
                    LaunchKind::Rsh,
                    self.rsh(rsh, destination),
                    host,
                    destination,
                ),
                None => launch(LaunchKind::Ssh, self.ssh(destination), host, destination),
            },
            StageHost::Server { .. } => None,
        }
    }

    /// Returns the command over the program of `--rsh`. rdpipe runs no shell here, so the words are not quoted.
    fn rsh(&self, rsh: &[String], destination: &str) -> Vec<OsString> {
        let mut words: Vec<_> = rsh
            .iter()
            .map(|word| word.replace(HOST, destination))
            .collect();
        if !rsh.iter().any(|word| word.contains(HOST)) {
            words.push(destination.to_owned());
        }
        words.push(self.program.as_deref().unwrap_or(PROGRAM).to_owned());
        words.push(AGENT.to_owned());
        words.into_iter().map(OsString::from).collect()
    }

    /// Returns the command over ssh. ssh passes the words after the host to the login shell, so they are quoted.
    fn ssh(&self, destination: &str) -> Vec<OsString> {
        // The command line of the user was refused if its path cannot be quoted.
        let program = self.program.as_deref().and_then(quote::remote_path);
        let program = program.unwrap_or_else(|| PROGRAM.to_owned());
        // ssh uses the first value of each option, so the user's options come before ours.
        let own = SSH_OPTIONS.into_iter().map(str::to_owned);
        let words = std::iter::once("ssh".to_owned())
            .chain(self.ssh_options.iter().cloned())
            .chain(own)
            .chain([destination.to_owned(), program, AGENT.to_owned()]);
        words.map(OsString::from).collect()
    }
}

impl Launch {
    /// Returns the command as a user would type it into a shell.
    pub(crate) fn display(&self) -> String {
        quote::display(self.argv.iter().map(OsString::as_os_str))
    }

    /// Returns the program that is started.
    pub(crate) fn program(&self) -> &OsStr {
        &self.argv[0]
    }
}

/// The placeholder in `--rsh` that is replaced by the host.
const HOST: &str = "{host}";

const PROGRAM: &str = "rdpipe";

const AGENT: &str = "--agent";

/// The options of ssh that rdpipe sets. The user's `--ssh-opt` overrides them.
const SSH_OPTIONS: [&str; 8] = [
    "-T",
    // There is no terminal on which a user could answer a question: ssh fails at once instead of asking.
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    // A new master would outlive the session and hold our pipes open. A master that already runs is used.
    "-oControlMaster=no",
    // Forwardings are meant for the user's own sessions, and several sessions at once cannot bind the same ports.
    "-oClearAllForwardings=yes",
    "-oForwardX11=no",
    "-oPermitLocalCommand=no",
    "-oRemoteCommand=none",
];
