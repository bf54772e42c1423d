//! The sweeps that have names: the experiments of tutorials.

use super::choice::Sweep;
use crate::perf::report::{
    operations::{FigureName, InlineName, VerbName},
    wait_name::WaitName,
};

/// The names of all sweeps.
pub(super) const NAMES: &str = "inline, verb, poll, signal, chunk";

/// Returns a sweep by its name.
pub(super) fn preset(name: &str) -> Option<Sweep> {
    let both = vec![FigureName::Time, FigureName::Rate];
    Some(match name {
        // Does it help that the work request carries the bytes?
        "inline" => Sweep {
            sizes: doubled(2, 10, 1),
            inlines: vec![InlineName::Never, InlineName::Always],
            figures: both,
            ..Sweep::default()
        },
        // Which operation is the fastest?
        "verb" => Sweep {
            verbs: vec![VerbName::Write, VerbName::Read, VerbName::Send],
            sizes: doubled(2, 9, 2),
            figures: both,
            ..Sweep::default()
        },
        // What does it cost to sleep until a completion?
        "poll" => Sweep {
            sizes: doubled(2, 8, 2),
            waits: vec![WaitName::Busy, WaitName::Event],
            signals: Some(vec![1]),
            figures: both,
            ..Sweep::default()
        },
        // What does each completion cost?
        "signal" => Sweep {
            verbs: vec![VerbName::Write],
            sizes: doubled(8, 7, 2),
            signals: Some(vec![1, 4, 16, 64]),
            figures: vec![FigureName::Rate],
            ..Sweep::default()
        },
        // How large must a chunk be, one at a time and pipelined?
        "chunk" => Sweep {
            verbs: vec![VerbName::Write],
            sizes: doubled(4 << 10, 13, 1),
            depths: Some(vec![1, 16]),
            figures: vec![FigureName::Rate],
            ..Sweep::default()
        },
        _ => return None,
    })
}

/// Returns `count` sizes, each 2 to the power of `doublings` times as large as the one before.
fn doubled(first: u32, count: u32, doublings: u32) -> Vec<u32> {
    (0..count).map(|at| first << (at * doublings)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_sweep() {
        for name in NAMES.split(", ") {
            let sweep = preset(name).unwrap();
            assert!(!sweep.sizes.is_empty() && !sweep.figures.is_empty());
        }
        assert_eq!(preset("chunks"), None);
    }

    #[test]
    fn the_sizes_are_those_of_the_documentation() {
        let ends = |name| {
            let sizes = preset(name).unwrap().sizes;
            (sizes[0], *sizes.last().unwrap())
        };
        assert_eq!(ends("inline"), (2, 1 << 10));
        assert_eq!(ends("verb"), (2, 128 << 10));
        assert_eq!(ends("poll"), (2, 32 << 10));
        assert_eq!(ends("signal"), (8, 32 << 10));
        assert_eq!(ends("chunk"), (4 << 10, 16 << 20));
    }
}
