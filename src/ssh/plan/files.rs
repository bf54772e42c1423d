//! Parses the files of rdcat into plans of one stage each. Pure, no I/O.

use std::{ffi::OsString, os::unix::ffi::OsStrExt};

use super::{Plan, PlanError, PlannedStage, SegmentFault, StageHost};
use crate::ssh::stage::StageWork;

/// The most bytes of paths in one order. The message of the order has room for twice as many.
const MAX_PATHS_BYTES: usize = 128 << 10;

impl Plan {
    /// Parses operands of the form `HOST:PATH`. Successive files of one host make one plan, so that one session
    /// reads them all.
    ///
    /// # Errors
    ///
    /// The first operand that is invalid, and why.
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

    fn files(operands: &[&str]) -> Result<Vec<Plan>, PlanError> {
        let operands: Vec<_> = operands.iter().map(OsString::from).collect();
        Plan::files(&operands)
    }

    fn shown(plan: &Plan) -> String {
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
        let shown: Vec<_> = plans.iter().map(shown).collect();
        assert_eq!(shown, ["a=1,2", "a=3", "here=4,5", "a=6", "::1=7"]);
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
                shown(&files(&[&format!("h:{path}")]).unwrap()[0]),
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
