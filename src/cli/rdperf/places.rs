//! The hosts of a command line, and the paths that are measured there. Pure, no I/O.

use std::{ffi::OsStr, ffi::OsString, os::unix::ffi::OsStrExt};

use crate::ssh::plan::StageHost;

/// A host, and its name in messages and in the report.
pub(super) type NamedPlace = (StageHost, String);

/// The name of this machine in messages and in the report.
const HERE: &str = "here";

/// Returns the hosts of a command line. One host is measured against this machine.
///
/// # Errors
///
/// One sentence for the user.
pub(super) fn places(operands: &[OsString]) -> Result<Vec<NamedPlace>, String> {
    let mut places: Vec<NamedPlace> = Vec::new();
    for operand in operands {
        let place = place(operand)?;
        let name = name(&place);
        if places.iter().any(|(_, other)| *other == name) {
            return Err(format!(
                "{name} was given twice; each host can be measured once"
            ));
        }
        places.push((place, name));
    }
    if let [(place, _)] = &places[..] {
        if *place == StageHost::Here {
            return Err("one end is this machine already; give another host".to_owned());
        }
        places.insert(0, (StageHost::Here, HERE.to_owned()));
    }
    Ok(places)
}

/// Returns the two hosts of a run with a ticket: this machine, and the one that listens at this address.
pub(super) fn of_ticket(address: String, port: u16) -> Vec<NamedPlace> {
    let server = StageHost::Server {
        host: address.clone(),
        port,
    };
    vec![(StageHost::Here, HERE.to_owned()), (server, address)]
}

fn place(operand: &OsStr) -> Result<StageHost, String> {
    let bytes = operand.as_bytes();
    let shown = operand.to_string_lossy();
    if bytes == b":" {
        return Ok(StageHost::Here);
    }
    if bytes.is_empty() {
        return Err("the name of a host is empty".to_owned());
    }
    // The rest after the colon is empty, so an operand with a colon of its own is a path or a command.
    let segment = [bytes, b":"].concat();
    match StageHost::split(&segment) {
        Ok((place, b"")) => Ok(place),
        Ok(_) => Err(format!(
            "{shown}: give a host without a path or a port, as [user@]HOST"
        )),
        Err(fault) => Err(format!("{shown}: {fault}")),
    }
}

fn name(place: &StageHost) -> String {
    place.host().unwrap_or(HERE).to_owned()
}

/// Returns the index of the host that a value of `--read` or `--write` names, and the path there.
///
/// # Errors
///
/// One sentence for the user.
pub(super) fn path_at(
    value: &OsStr,
    places: &[NamedPlace],
    default: usize,
) -> Result<(usize, Vec<u8>), String> {
    let bytes = value.as_bytes();
    let first = bytes.iter().position(|byte| matches!(byte, b':' | b'/'));
    let (host, path) = match first {
        Some(at) if bytes[at] == b':' => {
            let (place, path) = StageHost::split(bytes).map_err(|fault| fault.to_string())?;
            let name = name(&place);
            let host = places.iter().position(|(_, other)| *other == name);
            let host = host.ok_or_else(|| format!("{name} is not one of the hosts of this run"))?;
            (host, path)
        }
        _ => (default, bytes),
    };
    if path.is_empty() {
        return Err("there is no path after the colon".to_owned());
    }
    Ok((host, path.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(operands: &[&str]) -> Result<Vec<String>, String> {
        let operands: Vec<_> = operands.iter().map(OsString::from).collect();
        let places = places(&operands)?;
        Ok(places.into_iter().map(|(_, name)| name).collect())
    }

    #[test]
    fn one_host_is_measured_against_this_machine() {
        assert_eq!(names(&["fs1"]).unwrap(), ["here", "fs1"]);
        assert_eq!(names(&["me@fs1", "fs2"]).unwrap(), ["fs1", "fs2"]);
        assert_eq!(
            names(&["fs1", ":", "[fe80::1%eth0]"]).unwrap(),
            ["fs1", "here", "fe80::1%eth0"]
        );
    }

    #[test]
    fn wrong_hosts_get_a_sentence() {
        for (operands, sentence) in [
            (&[":"][..], "this machine already"),
            (&["a", "a"], "given twice"),
            (&["a", "me@a"], "given twice"),
            (&["a:b"], "without a path"),
            (&["a:"], "without a path"),
            (&[""], "empty"),
            (&["two words"], "not a valid name"),
        ] {
            let error = names(operands).unwrap_err();
            assert!(error.contains(sentence), "{operands:?}: {error}");
        }
    }

    #[test]
    fn a_path_is_at_one_of_the_hosts() {
        let operands: Vec<_> = ["fs1", ":"].iter().map(OsString::from).collect();
        let places = places(&operands).unwrap();
        let at = |value: &str| path_at(OsStr::new(value), &places, 1);
        assert_eq!(at("/data"), Ok((1, b"/data".to_vec())));
        assert_eq!(at("./a:b"), Ok((1, b"./a:b".to_vec())));
        assert_eq!(at("fs1:~/x"), Ok((0, b"~/x".to_vec())));
        assert_eq!(at(":x"), Ok((1, b"x".to_vec())));
        assert!(at("fs2:x").unwrap_err().contains("not one of the hosts"));
        assert!(at("fs1:").unwrap_err().contains("no path"));
    }
}
