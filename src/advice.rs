//! Advice for users of the programs: the options that help after an error. The library's errors state facts and name no
//! options.

use std::{fmt, io};

use crate::{DeviceFault, Error, Fault, HandshakeFault, KeyError};

/// An error of a stream, displayed as one sentence with the advice that belongs to it.
#[derive(Debug)]
pub(crate) struct Advised(pub(crate) Error);

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, for_stream(&self.0))
    }
}

/// Returns the advice for an error that has the error of a stream or a key among its causes; an empty text if there is
/// no advice.
pub(crate) fn advice(error: &anyhow::Error) -> &'static str {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        let stream = cause.downcast_ref::<Error>();
        let in_io = || cause.downcast_ref::<io::Error>().and_then(Error::from_io);
        let key = || cause.downcast_ref::<KeyError>().map(for_key);
        stream.or_else(in_io).map(for_stream).or_else(key)
    };
    error.chain().find_map(of).unwrap_or_default()
}

/// Returns the advice for `error`, as the end of the sentence that `error` begins.
fn for_stream(error: &Error) -> &'static str {
    match error {
        Error::Device { fault, .. } => for_device(*fault),
        Error::Handshake {
            fault: HandshakeFault::Transport(_),
            ..
        } => "; --transport auto allows it",
        Error::Handshake {
            fault: HandshakeFault::Encryption(_),
            ..
        } => SAME_ENCRYPTION,
        // The acceptor finds the disagreement, and the dialer gets its words.
        Error::Handshake {
            fault: HandshakeFault::Refused(reason),
            ..
        } if reason.contains("do not agree on encryption") => SAME_ENCRYPTION,
        Error::Send { fault, .. }
        | Error::Receive { fault, .. }
        | Error::Unconfirmed { fault, .. } => match fault {
            Fault::PeerSilent(_) => "; see --timeout",
            _ => "",
        },
        _ => "",
    }
}

const SAME_ENCRYPTION: &str = "; give both the same --encrypt, or neither one";

fn for_device(fault: DeviceFault) -> &'static str {
    match fault {
        DeviceFault::Choice => "; see --device, --ib-port, --gid-index and --pkey-index",
        DeviceFault::Memlock => " (see docs/rdma.md, Locked memory) or use --transport tcp",
        DeviceFault::Unusable | DeviceFault::NotBuilt => {
            "; use --transport auto to use TCP instead"
        }
    }
}

fn for_key(error: &KeyError) -> &'static str {
    match error {
        KeyError::Missing => {
            ": give KEY as an argument, --key-file FILE or RDPIPE_KEY in the environment (rdrecv without a key makes one and prints it)"
        }
        KeyError::Empty => "; give another key, or start rdrecv without a key: it makes one",
        _ => "",
    }
}

/// Returns the advice for a message about a limit of the system, on this host or on another one.
pub(crate) fn for_limit(message: &str) -> &'static str {
    let is = |error: &str| message.contains(error);
    let starts = [
        "cannot start a thread",
        "cannot start the agent",
        "cannot run ",
        "cannot execute ",
    ];
    if is("(os error 24)") && !is("ulimit -n") {
        "; raise the limit of open files (`ulimit -n`)"
    } else if is("(os error 23)") && !is("fs.file-max") {
        "; raise the limit of open files of the whole host (`sysctl fs.file-max`)"
    } else if is("(os error 11)") && starts.into_iter().any(is) && !is("ulimit -u") {
        "; raise the limits of processes (`ulimit -u`) and of memory (`ulimit -v`)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::Context;

    use super::*;

    fn silent() -> Error {
        Error::Receive {
            peer: "b".into(),
            offset: 7,
            fault: Fault::PeerSilent(Duration::from_secs(30)),
        }
    }

    #[test]
    fn advice_follows_the_error() {
        assert_eq!(
            Advised(silent()).to_string(),
            "receiving from b failed at byte 7: received nothing from the other end for 30.0s (host down or cable out); see --timeout"
        );
        let device = |fault, reason: &str| {
            let reason = reason.to_owned();
            Advised(Error::Device { fault, reason }).to_string()
        };
        assert_eq!(
            device(DeviceFault::Unusable, "no RDMA device"),
            "no RDMA device; use --transport auto to use TCP instead"
        );
        assert_eq!(
            device(DeviceFault::Memlock, "raise `ulimit -l`"),
            "raise `ulimit -l` (see docs/rdma.md, Locked memory) or use --transport tcp"
        );
        let fault = HandshakeFault::Transport("a: no RDMA device".into());
        let peer = "b".into();
        assert_eq!(
            Advised(Error::Handshake { peer, fault }).to_string(),
            "b: no RDMA, and one end does not allow TCP: a: no RDMA device; --transport auto allows it"
        );
    }

    #[test]
    fn ends_that_do_not_agree_on_encryption_are_told_what_to_give() {
        let fault = HandshakeFault::Encryption("a has auto, b has never".into());
        for fault in [HandshakeFault::Refused(fault.to_string()), fault] {
            let peer = "b".into();
            let text = Advised(Error::Handshake { peer, fault }).to_string();
            let end = "the hosts do not agree on encryption: a has auto, b has never; give both the same --encrypt, or neither one";
            assert!(text.ends_with(end), "{text}");
        }
    }

    #[test]
    fn a_limit_of_open_files_is_named_once() {
        let text = io::Error::from_raw_os_error(24).to_string();
        let advised = text.clone() + for_limit(&text);
        assert_eq!(
            advised,
            "Too many open files (os error 24); raise the limit of open files (`ulimit -n`)"
        );
        assert_eq!(for_limit(&advised), "");
        assert_eq!(for_limit("No such file or directory (os error 2)"), "");
    }

    #[test]
    fn advice_is_found_under_context_and_in_io_errors() {
        let bare: Result<(), Error> = Err(silent());
        assert_eq!(advice(&bare.context("x").unwrap_err()), "; see --timeout");
        let in_io: Result<(), io::Error> = Err(silent().into());
        assert_eq!(advice(&in_io.context("x").unwrap_err()), "; see --timeout");
        assert!(advice(&KeyError::Missing.into()).contains("--key-file"));
        assert_eq!(advice(&anyhow::anyhow!("anything else")), "");
    }
}
