//! The exit codes of the programs.

use std::{io, process::ExitCode};

use serde::{Serialize, Serializer};

use crate::{error::Error, key::KeyError, reach::ticket::NoListener};

/// How a run ended. [`EXIT_CODES`](crate::cli::args::EXIT_CODES) explains each value to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Exit {
    /// All bytes were delivered, and the other end confirmed them.
    #[default]
    Ok,
    /// This end failed to read its input or to write its output.
    Local,
    /// The command line, or the key that it names, cannot be used.
    Usage,
    /// The other end reported a failure.
    Remote,
    /// All bytes were sent, but the connection broke before the other end confirmed them.
    Unconfirmed,
    /// The command that was run ended with this status.
    Command(u8),
    /// The signal with this number ended the run.
    Signal(u8),
    /// The reader of the output went away. The code is the one that a shell shows for a program that SIGPIPE killed.
    ReaderClosed,
    /// No connection was possible, the keys differ, or the transport failed.
    Connection,
}

impl Exit {
    /// Returns the exit code of the process.
    #[must_use]
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Local => 1,
            Self::Usage => 2,
            Self::Remote => 3,
            Self::Unconfirmed => 4,
            Self::Command(status) => status,
            Self::Signal(number) => number.saturating_add(128),
            Self::ReaderClosed => 141,
            Self::Connection => 255,
        }
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match error {
            Error::Resolve { .. }
            | Error::Connect { .. }
            | Error::Listen { .. }
            | Error::Device { .. }
            | Error::Handshake { .. }
            | Error::Send { .. }
            | Error::Receive { .. } => Self::Connection,
            Error::Unconfirmed { .. } => Self::Unconfirmed,
            Error::PeerAborted { .. } => Self::Remote,
            Error::Stopped { .. } => Self::ReaderClosed,
            Error::Aborted { .. } | Error::Misuse(_) => Self::Local,
        }
    }
}

impl From<&io::Error> for Exit {
    /// Converts the stream's error inside `error`. An `io::Error` without one is local: errors of sockets are always
    /// wrapped in an [`Error`].
    fn from(error: &io::Error) -> Self {
        match Error::from_io(error) {
            Some(inner) => inner.into(),
            None if error.kind() == io::ErrorKind::BrokenPipe => Self::ReaderClosed,
            None => Self::Local,
        }
    }
}

impl From<&anyhow::Error> for Exit {
    /// Converts the outermost cause whose type has an exit code.
    fn from(error: &anyhow::Error) -> Self {
        let known = |cause: &(dyn std::error::Error + 'static)| {
            let stream = cause.downcast_ref::<Error>().map(Self::from);
            let key = || cause.downcast_ref::<KeyError>().map(|_| Self::Usage);
            let no_listener = || cause.is::<NoListener>().then_some(Self::Connection);
            let local = || cause.downcast_ref::<io::Error>().map(Self::from);
            stream.or_else(key).or_else(no_listener).or_else(local)
        };
        error.chain().find_map(known).unwrap_or(Self::Local)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl Serialize for Exit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.code())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;
    use crate::error::Fault;

    fn unconfirmed() -> Error {
        Error::Unconfirmed {
            peer: "b".into(),
            bytes: 3,
            fault: Fault::Protocol("x"),
        }
    }

    #[test]
    fn an_error_of_a_stream_is_found_under_context() {
        let bare = Error::PeerAborted {
            peer: "b".into(),
            offset: 0,
            reason: "full".into(),
        };
        let bare: Result<(), _> = Err(bare);
        let error = bare.context("while copying").unwrap_err();
        assert_eq!(Exit::from(&error), Exit::Remote);

        let in_io: Result<(), io::Error> = Err(unconfirmed().into());
        let error = in_io
            .context("while copying")
            .context("rdsend")
            .unwrap_err();
        assert_eq!(Exit::from(&error), Exit::Unconfirmed);
    }

    #[test]
    fn errors_of_this_end_have_different_codes() {
        let of = |error: anyhow::Error| Exit::from(&error);
        assert_eq!(
            of(io::Error::from(io::ErrorKind::StorageFull).into()),
            Exit::Local
        );
        assert_eq!(
            of(io::Error::from(io::ErrorKind::BrokenPipe).into()),
            Exit::ReaderClosed
        );
        assert_eq!(of(KeyError::Empty.into()), Exit::Usage);
        assert_eq!(
            of(crate::Key::from_file("/nonexistent").unwrap_err().into()),
            Exit::Usage
        );
        assert_eq!(of(anyhow::anyhow!("anything else")), Exit::Local);
        let stopped = Error::Stopped {
            peer: "b".into(),
            offset: 9,
        };
        assert_eq!(of(stopped.into()), Exit::ReaderClosed);
    }
}
