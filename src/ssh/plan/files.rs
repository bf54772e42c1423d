//! The files of rdcat, as plans of one stage each.

use std::{ffi::OsString, os::unix::ffi::OsStrExt};

use super::{Plan, PlanError, PlannedStage, SegmentFault, StageHost};
use crate::ssh::stage::StageWork;

/// Most bytes of paths in one order: its message has room for twice as many.
const MAX_PATHS_BYTES: usize = 128 << 10;

impl Plan {
    /// Takes operands of the form `HOST:PATH` apart. Files of one host that follow each other make one plan, so
    /// that they come over one session.
    ///
    /// # Errors
    ///
    /// The first operand that makes no sense, and why.
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

/// The path is everything behind the colon, whatever it is.
fn split(operand: &[u8]) -> Result<(StageHost, &[u8]), SegmentFault> {
    match StageHost::split(operand) {
        Err(SegmentFault::NoColon) => Err(SegmentFault::NoTicket),
        Ok((_, [])) => Err(SegmentFault::NoPath),
        split => split,
    }
}

fn has_room(paths: &[Vec<u8>], path: &[u8]) -> bool {
    // Each has its length in front.
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
    fn neighbours_on_one_host_come_together() {
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
    fn what_is_no_file_is_told() {
        for (operand, words) in [
            ("file", "\"file\": give HOST:PATH"),
            ("h:", "no file behind the colon"),
            ("-h:x", "an option of ssh"),
            ("[::1]x", "brackets"),
            ("two words:x", "no user or host"),
        ] {
            let text = files(&["a:1", operand]).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn many_files_are_several_orders() {
        let long = format!("h:{}", "x".repeat(4000));
        let operands = vec![long.as_str(); 100];
        let plans = files(&operands).unwrap();
        assert_eq!(plans.len(), 4);
        for plan in &plans {
            assert!(Payload::encode(&plan.stages[0].work).is_ok());
        }
    }

    #[test]
    fn messages_name_hosts_and_no_stages() {
        let plan = files(&["fs1:x"]).unwrap().remove(0);
        assert_eq!(plan.ends(1), ("fs1".to_owned(), "rdcat".to_owned()));
    }
}
