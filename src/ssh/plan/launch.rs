//! How a stage's agent is started: ssh, whatever replaces it, or nothing at all.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use super::StageHost;
use crate::ssh::quote;

/// What the user said about the way to other hosts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remote {
    /// `--rsh`, in words; none is ssh.
    pub(crate) rsh: Option<Vec<String>>,
    /// `--ssh-opt`, in words.
    pub(crate) ssh_options: Vec<String>,
    /// `--remote-rdpipe`.
    pub(crate) program: Option<String>,
}

/// A command that brings up an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Program and arguments: at least the program.
    pub(crate) words: Vec<OsString>,
    /// What the command goes through.
    pub(crate) kind: LaunchKind,
    /// The host as messages name it.
    pub(crate) host: String,
    /// What `ssh-copy-id` would be told.
    pub(crate) destination: String,
}

/// What a [`Launch`] goes through: its failures are explained differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaunchKind {
    Ssh,
    Rsh,
    Here,
}

impl Remote {
    /// How to start the agent at `place`; `own` is this program, for stages that run here.
    pub(crate) fn launch(&self, place: &StageHost, own: &Path) -> Launch {
        let launch = |kind, words: Vec<OsString>, host: &str, destination: &str| Launch {
            words,
            kind,
            host: host.to_owned(),
            destination: destination.to_owned(),
        };
        match place {
            StageHost::Here => {
                let words = vec![own.as_os_str().to_owned(), AGENT.into()];
                launch(LaunchKind::Here, words, "this machine", "")
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
        }
    }

    /// No shell of ours is between: the words go as they are.
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

    /// ssh hands what stands behind the host to the login shell, so that is quoted.
    fn ssh(&self, destination: &str) -> Vec<OsString> {
        let program = self.program.as_deref().map(quote::remote_path);
        let program = program.unwrap_or_else(|| PROGRAM.to_owned());
        // ssh takes the first value that it meets, so the user's options win.
        let own = SSH_OPTIONS.into_iter().map(str::to_owned);
        let words = std::iter::once("ssh".to_owned())
            .chain(self.ssh_options.iter().cloned())
            .chain(own)
            .chain([destination.to_owned(), program, AGENT.to_owned()]);
        words.map(OsString::from).collect()
    }
}

impl Launch {
    /// The command as one would type it.
    pub(crate) fn display(&self) -> String {
        quote::display(self.words.iter().map(OsString::as_os_str))
    }

    /// The program that is started.
    pub(crate) fn program(&self) -> &OsStr {
        &self.words[0]
    }
}

/// What `--rsh` may hold, and the host takes the place of.
const HOST: &str = "{host}";

const PROGRAM: &str = "rdpipe";

const AGENT: &str = "--agent";

/// What ssh is told, unless the user says otherwise.
const SSH_OPTIONS: [&str; 8] = [
    "-T",
    // There is no terminal to answer a question: an error at once, instead.
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    // A master that stays behind would hold our pipes; one that is there already is used.
    "-oControlMaster=no",
    // Meant for the user's own sessions; several at once would quarrel over the ports.
    "-oClearAllForwardings=yes",
    "-oForwardX11=no",
    "-oPermitLocalCommand=no",
    "-oRemoteCommand=none",
];
