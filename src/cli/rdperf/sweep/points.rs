//! What a sweep measures: the sweeps that have names, and what the devices of two hosts leave out.

use super::spec::Sweep;
use crate::perf::{
    messages::VerbsLimits,
    report::{
        host_summary::{SizeText, WaitName},
        operations::{FigureName, InlineName, Operations, VerbName},
    },
};

/// The most measurements of a sweep: half an hour with the default times.
pub(super) const MAX_POINTS: usize = 2000;

/// What a sweep measures with the devices of two hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::cli::rdperf) struct SweepPlan {
    /// What is measured, in the order of the report.
    pub(in crate::cli::rdperf) points: Vec<Operations>,
    /// What the devices cannot do although it was asked for.
    pub(in crate::cli::rdperf) refused: Vec<String>,
    /// What is left out by the nature of the sweep.
    pub(in crate::cli::rdperf) notes: Vec<String>,
}

impl Sweep {
    /// Returns every combination of the values that any device can measure, in the order of the report: figure, curve,
    /// size.
    pub(super) fn points(&self) -> Vec<Operations> {
        let mut points = Vec::new();
        for &figure in &self.figures {
            let depths = match figure {
                FigureName::Time => vec![1],
                FigureName::Rate => self.depths(),
            };
            for &verb in &self.verbs {
                for &wait in &self.waits {
                    for &inline in &self.inlines {
                        for signal in self.signals(figure) {
                            for &depth in &depths {
                                let curve = Operations {
                                    figure,
                                    verb,
                                    wait,
                                    inline,
                                    signal,
                                    // A ping-pong has one operation at a time, and their completions may be missing for
                                    // some.
                                    depth: depth.max(signal),
                                    size: 0,
                                };
                                let of_size = |&size| Operations { size, ..curve };
                                points.extend(self.sizes.iter().map(of_size));
                            }
                        }
                    }
                }
            }
        }
        points.retain(|point| self.is_possible(point));
        points
    }

    /// Returns false for a point that no device can measure, or that another point of the sweep measures too.
    fn is_possible(&self, point: &Operations) -> bool {
        let has_others = self.inlines.len() > 1;
        let is_read = point.verb == VerbName::Read;
        let is_time = point.figure == FigureName::Time;
        let repeats = has_others && point.inline != InlineName::Never && !point.is_inline();
        let is_inline_read = is_read && point.inline != InlineName::Never;
        // The end that dials waits for each READ.
        let is_unsignalled_read = is_read && is_time && point.signal > 1;
        // A WRITE makes no event at the end that it arrives at.
        let is_silent = is_time && point.verb == VerbName::Write && point.wait == WaitName::Event;
        !(repeats || is_inline_read || is_unsignalled_read || is_silent)
    }
}

/// Returns what a sweep measures with devices that have these limits.
pub(in crate::cli::rdperf) fn planned(sweep: &Sweep, limits: VerbsLimits) -> SweepPlan {
    let mut plan = SweepPlan::default();
    let most = limits.inline_bytes;
    for point in sweep.points() {
        let refusal = match (point.verb, point.inline) {
            (VerbName::Read, _) if limits.reads == 0 => {
                Some("the devices carry out no RDMA READ, so READs cannot be measured".to_owned())
            }
            (_, InlineName::UpTo(bytes)) if bytes > most => Some(format!(
                "a work request of these devices carries at most {most} bytes, so inline={bytes} cannot be measured"
            )),
            _ => None,
        };
        if let Some(text) = refusal {
            add(&mut plan.refused, text);
        } else if point.inline == InlineName::Always && point.size > most {
            let text = format!(
                "a work request of these devices carries at most {most} bytes: operations from {} on are measured without",
                SizeText(first_above(sweep, most))
            );
            add(&mut plan.notes, text);
        } else {
            plan.points.push(point);
        }
    }
    plan
}

/// Returns the smallest size of a sweep that is larger than `most`.
fn first_above(sweep: &Sweep, most: u32) -> u32 {
    let above = sweep.sizes.iter().filter(|size| **size > most);
    above.min().copied().unwrap_or(most)
}

/// Adds a text, once.
fn add(texts: &mut Vec<String>, text: String) {
    if !texts.contains(&text) {
        texts.push(text);
    }
}

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

    const LIMITS: VerbsLimits = VerbsLimits {
        inline_bytes: 476,
        reads: 16,
    };

    fn plan(text: &str, limits: VerbsLimits) -> SweepPlan {
        planned(&text.parse().unwrap(), limits)
    }

    fn names(points: &[Operations]) -> Vec<String> {
        points.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn inline_is_measured_as_far_as_the_devices_can() {
        let plan = plan("inline", LIMITS);
        let inline = plan.points.iter().filter(|point| point.is_inline());
        let times = inline.filter(|point| point.figure == FigureName::Time);
        assert_eq!(times.map(|point| point.size).max(), Some(256));
        assert_eq!(plan.points.len(), 2 * (10 + 8));
        assert_eq!(plan.refused, [""; 0]);
        let note = "a work request of these devices carries at most 476 bytes: operations from 512 B on are measured without";
        assert_eq!(plan.notes, [note]);
    }

    #[test]
    fn what_was_asked_for_and_cannot_be_done_is_refused() {
        let plan = plan(
            "size=64,verb=send,read,inline=0,600",
            VerbsLimits { reads: 0, ..LIMITS },
        );
        assert!(plan.refused[0].contains("at most 476 bytes, so inline=600"));
        assert!(plan.refused[1].contains("no RDMA READ"));
        assert_eq!(
            names(&plan.points),
            [
                "verbs SEND of 64 B, there and back, busy, not inline, all signalled",
                "verbs SEND of 64 B, 128 at a time, busy, not inline, 1 in 64 signalled"
            ]
        );
    }

    #[test]
    fn nothing_is_measured_twice() {
        let plan = plan("size=64,256,inline=0,220", LIMITS);
        let sizes: Vec<_> = plan.points.iter().map(|point| point.size).collect();
        assert_eq!(sizes, [64, 256, 64, 64, 256, 64]);
        let alone = self::plan("size=64,256,inline=220", LIMITS);
        assert_eq!(alone.points.len(), 4);
    }

    #[test]
    fn what_no_device_can_measure_is_left_out() {
        let plan = plan("verb=write,read,poll=event,signal=4", LIMITS);
        assert_eq!(
            names(&plan.points),
            [
                "verbs WRITE of 64 B, 128 at a time, events, not inline, 1 in 4 signalled",
                "verbs READ of 64 B, 128 at a time, events, not inline, 1 in 4 signalled"
            ]
        );
    }

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
