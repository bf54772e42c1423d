//! Parses operands: the files of rdcat into plans of one stage each, and those of rdcp, paths of this machine and of
//! other hosts. Pure, no I/O.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use super::{
    plan::{Plan, PlanError, PlannedStage, SegmentFault, StageHost},
    stage::StageWork,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operand {
    /// `-`: the standard input or output.
    Standard,
    Path(HostPath),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPath {
    pub(crate) place: StageHost,
    pub(crate) path: Vec<u8>,
}

impl Operand {
    /// Parses `-`, `PATH`, `[user@]HOST:PATH`, `HOST:PORT:PATH` or `:PATH`. A path with a `/` before its first colon is
    /// one of this machine. A number between two colons is the port of a server.
    /// The error names the operand, and why it cannot be used.
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

/// The most bytes of paths in one order. The message of the order has room for twice as many.
const MAX_PATHS_BYTES: usize = 128 << 10;

impl Plan {
    /// Parses operands of the form `HOST:PATH`. Successive files of one host make one plan, so that one session
    /// reads them all.
    /// The error names the first operand that is invalid, and why.
    pub(crate) fn files(operands: &[OsString]) -> Result<Vec<Self>, PlanError> {
        let mut runs: Vec<(StageHost, Vec<Vec<u8>>)> = Vec::new();
        for operand in operands {
            let (place, path) = split(operand.as_bytes()).map_err(|fault| PlanError {
                segment: operand.to_string_lossy().into_owned(),
                fault,
            })?;
            let path = path.to_vec();
            match runs.last_mut() {
                Some((last, paths)) if *last == place && has_room(paths, &path) => paths.push(path),
                _ => runs.push((place, vec![path])),
            }
        }
        Ok(runs.into_iter().map(plan).collect())
    }
}

/// Splits an operand into the host and the path. The path is all bytes after the colon.
fn split(operand: &[u8]) -> Result<(StageHost, &[u8]), SegmentFault> {
    match StageHost::split(operand) {
        Err(SegmentFault::NoColon) => Err(SegmentFault::NoTicket),
        Ok((_, [])) => Err(SegmentFault::NoPath),
        split => split,
    }
}

/// Returns true if an order with these paths has room for one more.
pub(crate) fn has_room(paths: &[Vec<u8>], path: &[u8]) -> bool {
    // Each path is preceded by its length, of at most 3 bytes.
    let bytes = paths.iter().map(|path| path.len() + 3).sum::<usize>();
    bytes + path.len() < MAX_PATHS_BYTES
}

fn plan((place, paths): (StageHost, Vec<Vec<u8>>)) -> Plan {
    let text = match &paths[..] {
        [path] => String::from_utf8_lossy(path).into_owned(),
        paths => format!("{} files", paths.len()),
    };
    let work = StageWork::Files(paths);
    Plan {
        stages: vec![PlannedStage { place, work, text }],
        has_input: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::protocol::Payload;

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

    fn files(operands: &[&str]) -> Result<Vec<Plan>, PlanError> {
        let operands: Vec<_> = operands.iter().map(OsString::from).collect();
        Plan::files(&operands)
    }

    fn shown_plan(plan: &Plan) -> String {
        let StageWork::Files(paths) = &plan.stages[0].work else {
            panic!("{plan:?}");
        };
        let paths: Vec<_> = paths
            .iter()
            .map(|path| String::from_utf8_lossy(path))
            .collect();
        format!("{}={}", plan.stages[0].place, paths.join(","))
    }

    #[test]
    fn successive_files_of_one_host_share_a_session() {
        let plans = files(&["a:1", "a:2", "u@a:3", ":4", ":5", "a:6", "[::1]:7"]).unwrap();
        let shown_plan: Vec<_> = plans.iter().map(shown_plan).collect();
        assert_eq!(shown_plan, ["a=1,2", "a=3", "here=4,5", "a=6", "::1=7"]);
        assert!(plans.iter().all(|plan| !plan.has_input));
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        for path in [
            " a b ",
            "< x",
            "> x",
            "it's \"$HOME\" *",
            "-n",
            "a:b",
            "a\nb",
            "~/x",
            "grüße",
        ] {
            assert_eq!(
                shown_plan(&files(&[&format!("h:{path}")]).unwrap()[0]),
                format!("h={path}")
            );
        }
    }

    #[test]
    fn an_operand_that_names_no_file_is_refused_with_a_reason() {
        for (operand, words) in [
            ("file", "\"file\": give HOST:PATH"),
            ("h:", "no file after the colon"),
            ("-h:x", "an option of ssh"),
            ("[::1]x", "brackets"),
            ("two words:x", "not a valid name"),
        ] {
            let text = files(&["a:1", operand]).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn long_lists_of_files_are_split_into_several_orders() {
        let long = format!("h:{}", "x".repeat(4000));
        let operands = vec![long.as_str(); 100];
        let plans = files(&operands).unwrap();
        assert_eq!(plans.len(), 4);
        for plan in &plans {
            assert!(Payload::encode(&plan.stages[0].work).is_ok());
        }
    }

    #[test]
    fn messages_of_rdcat_name_hosts_and_not_stages() {
        let plan = files(&["fs1:x"]).unwrap().remove(0);
        assert_eq!(plan.ends(1), ("fs1".to_owned(), "rdcat".to_owned()));
    }
}
