//! The reason why a session with an agent ends before the agent has closed it.

use std::time::Duration;

use crate::ssh::protocol::VERSION;

/// The reason why no more messages of the agent are read.
pub(super) enum SessionFailure {
    /// The process closed its stdout; its exit status says why.
    Closed,
    /// The session was cut.
    Cut,
    /// No greeting arrived within this time.
    Unanswered(Duration),
    /// Nothing arrived for this time, after which an agent counts as lost; true if there was a message before.
    Silent(bool, Duration),
    /// A message cannot be decoded.
    Invalid,
    /// The other end begins with something else than the greeting of this version.
    Greeting(WrongGreeting),
}

/// What the other end sent in place of a greeting of this version.
pub(super) enum WrongGreeting {
    /// The version of the protocol, and of the program.
    Version(u32, String),
    /// More than any login prints.
    Endless,
}

impl SessionFailure {
    /// Returns the text of the failure, for a session with an agent on `host`.
    pub(super) fn text(&self, host: &str) -> String {
        match self {
            Self::Closed => format!("{host} ended the session"),
            Self::Cut => "its session was cut".to_owned(),
            Self::Unanswered(limit) | Self::Silent(_, limit) => {
                format!("{host} sent nothing for {limit:.0?}")
            }
            Self::Invalid => {
                format!("the agent on {host} sent a message that this version cannot decode")
            }
            Self::Greeting(WrongGreeting::Version(version, program)) => {
                let ours = env!("CARGO_PKG_VERSION");
                format!(
                    "rdpipe {program} on {host} speaks version {version} of the pipelines' protocol, rdpipe {ours} here version {VERSION}; install the same rdpipe on both"
                )
            }
            Self::Greeting(WrongGreeting::Endless) => format!(
                "the login shell on {host} prints without end, so rdpipe cannot start there; check its profile"
            ),
        }
    }
}
