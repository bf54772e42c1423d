//! Parses the operands of rdcp: paths of this machine and of other hosts. Pure, no I/O.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use super::{PlanError, SegmentFault, StageHost};

/// An operand of rdcp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operand {
    /// `-`: the standard input or output.
    Standard,
    /// A path.
    Path(HostPath),
}

/// A path of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPath {
    /// The host.
    pub(crate) place: StageHost,
    /// The path, for the host's agent.
    pub(crate) path: Vec<u8>,
}

impl Operand {
    /// Parses `-`, `PATH`, `[user@]HOST:PATH`, `HOST:PORT:PATH` or `:PATH`. A path with a `/` before its first colon is one
    /// of this machine. A number between two colons is the port of a server.
    ///
    /// # Errors
    ///
    /// The operand, and why it cannot be used.
    pub(crate) fn parse(operand: &OsStr) -> Result<Self, PlanError> {
        let bytes = operand.as_bytes();
        if bytes == b"-" {
            return Ok(Self::Standard);
        }
        let path = HostPath::parse(bytes).map_err(|fault| PlanError {
            segment: operand.to_string_lossy().into_owned(),
            fault,
        })?;
        Ok(Self::Path(path))
    }
}

impl HostPath {
    fn parse(operand: &[u8]) -> Result<Self, SegmentFault> {
        let first = operand.iter().find(|byte| matches!(byte, b':' | b'/'));
        if first != Some(&b':') {
            return Self::here(operand);
        }
        let (place, path) = StageHost::split(operand)?;
        let (place, path) = server(place, path)?;
        let path = match (path, &place) {
            ([], StageHost::Here) => return Err(SegmentFault::NoPath),
            // As with scp: the directory where a login starts. Of a server, the directory that it serves.
            ([], StageHost::Host { .. } | StageHost::Server { .. }) => b".".to_vec(),
            (path, _) => path.to_vec(),
        };
        Ok(Self { place, path })
    }

    /// Returns a path of this machine that has no colon before it.
    fn here(path: &[u8]) -> Result<Self, SegmentFault> {
        if path.is_empty() {
            return Err(SegmentFault::EmptyPath);
        }
        // The user's shell has replaced a tilde that means the home directory, so the agent must not.
        let prefix: &[u8] = if path.starts_with(b"~/") { b"./" } else { b"" };
        Ok(Self {
            place: StageHost::Here,
            path: [prefix, path].concat(),
        })
    }
}

/// Returns the server and the path if `path` begins with a port, otherwise its arguments.
fn server(place: StageHost, path: &[u8]) -> Result<(StageHost, &[u8]), SegmentFault> {
    let StageHost::Host { destination, host } = &place else {
        return Ok((place, path));
    };
    let colon = path.iter().position(|&byte| byte == b':');
    let number = colon.map_or(&[][..], |colon| &path[..colon]);
    if number.is_empty() || !number.iter().all(u8::is_ascii_digit) {
        return Ok((place, path));
    }
    if destination != host {
        return Err(SegmentFault::ServerUser);
    }
    let port = std::str::from_utf8(number)
        .ok()
        .and_then(|port| port.parse().ok());
    let port = port.filter(|&port| port != 0).ok_or(SegmentFault::Port)?;
    let host = host.clone();
    Ok((StageHost::Server { host, port }, &path[number.len() + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(operand: &[u8]) -> String {
        match Operand::parse(OsStr::from_bytes(operand)) {
            Ok(Operand::Standard) => "standard".to_owned(),
            Ok(Operand::Path(HostPath { place, path })) => {
                let place = match place {
                    StageHost::Here => "here".to_owned(),
                    StageHost::Host { destination, host } => format!("{destination}/{host}"),
                    StageHost::Server { host, port } => format!("server {host} {port}"),
                };
                format!("{place} {}", path.escape_ascii())
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn paths_are_of_hosts_or_of_this_machine() {
        for (operand, expected) in [
            (&b"-"[..], "standard"),
            (b"./-", "here ./-"),
            (b"a", "here a"),
            (b"/a b/c:d", "here /a b/c:d"),
            (b"./a:b", "here ./a:b"),
            (b"~/a", "here ./~/a"),
            (b":~/a", "here ~/a"),
            (b":a:b", "here a:b"),
            (b"h:/a b", "h/h /a b"),
            (b"h:~/a", "h/h ~/a"),
            (b"u@h:a:b", "u@h/h a:b"),
            (b"h:", "h/h ."),
            (b"[::1]:a", "::1/::1 a"),
            (b"u@[fe80::1%eth0]:/a", "u@fe80::1%eth0/fe80::1%eth0 /a"),
            (b"h:\xff\n", "h/h \\xff\\n"),
            (b"h:10470:/a:b", "server h 10470 /a:b"),
            (b"[::1]:7:", "server ::1 7 ."),
            (b"h:./10470:a", "h/h ./10470:a"),
            (b"h:1a:b", "h/h 1a:b"),
            (b"h:10470", "h/h 10470"),
            (b"\xff", "here \\xff"),
        ] {
            assert_eq!(shown(operand), expected);
        }
    }

    #[test]
    fn an_operand_that_names_no_path_is_refused_with_a_reason() {
        for (operand, words) in [
            (&b""[..], "an operand is empty"),
            (b":", "no file after the colon"),
            (b"-h:x", "an option of ssh"),
            (b"[::1]x:y", "brackets"),
            (b"two words:x", "not a valid name"),
            (b"u@h:10470:x", "no users"),
            (b"h:70000:x", "from 1 to 65535"),
            (b"h:0:x", "from 1 to 65535"),
        ] {
            let text = shown(operand);
            assert!(text.contains(words), "{text}");
        }
    }
}
