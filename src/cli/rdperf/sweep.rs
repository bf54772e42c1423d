//! Sweeps: the same measurement over many sizes, with different settings of RDMA. The text of `--sweep`, what it
//! measures, and what the devices of two hosts leave out. Pure, no I/O.

use std::str::FromStr;

use crate::{
    options,
    perf::{
        messages::{MAX_OPERATION_BYTES, Verb, VerbsLimits, WaitMode},
        report::{
            SizeText,
            measurand::{FigureName, InlineName, Operations},
        },
    },
};

/// What `--sweep` asks for: every combination of these values that can be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep {
    verbs: Vec<Verb>,
    /// The sizes of operations in bytes.
    sizes: Vec<u32>,
    inlines: Vec<InlineName>,
    waits: Vec<WaitMode>,
    /// Of how many operations one makes a completion; none for what suits the depth.
    signals: Option<Vec<u32>>,
    /// How many operations are posted at once; none for what suits the sizes. A ping-pong has one.
    depths: Option<Vec<u32>>,
    figures: Vec<FigureName>,
}

/// What is measured if only one setting is given: SENDs of the size of a cache line, not inline, with polling.
impl Default for Sweep {
    fn default() -> Self {
        Self {
            verbs: vec![Verb::Send],
            sizes: vec![64],
            inlines: vec![InlineName::Never],
            waits: vec![WaitMode::Busy],
            signals: None,
            depths: None,
            figures: vec![FigureName::Time, FigureName::Rate],
        }
    }
}

/// The most operations that are posted and not complete. Devices allow some ten thousand.
const MAX_DEPTH: u64 = 16_384;

impl Sweep {
    /// Sets a setting to these values.
    fn set(&mut self, key: &str, texts: &[&str]) -> Result<(), String> {
        match key {
            "size" => {
                self.sizes = numbers(texts, 1, u64::from(MAX_OPERATION_BYTES), options::size)?;
            }
            "verb" => self.verbs = words(texts, verb)?,
            "inline" => self.inlines = words(texts, inline)?,
            "poll" => self.waits = words(texts, wait)?,
            "signal" => self.signals = Some(numbers(texts, 1, MAX_DEPTH, whole)?),
            "depth" => self.depths = Some(numbers(texts, 1, MAX_DEPTH, whole)?),
            _ => {
                return Err(format!(
                    "a sweep has the settings size, verb, inline, poll, signal and depth; {key} is none of them"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the values belong together.
    fn check(&self) -> Result<(), String> {
        let least = self.depths().into_iter().min().unwrap_or(1);
        let signals = self.signals(FigureName::Rate);
        if let Some(signal) = signals.iter().find(|signal| **signal > least) {
            return Err(format!(
                "with signal={signal} none of {least} operations at a time would make a completion; give depth={signal} or more"
            ));
        }
        let points = self.points().len();
        match points {
            0 => Err("none of these operations can be measured: READs are never inline, and WRITEs there and back have to poll".to_owned()),
            points if points > MAX_POINTS => Err(format!(
                "this sweep has {points} measurements; at most {MAX_POINTS} are possible"
            )),
            _ => Ok(()),
        }
    }
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',').map(str::trim).peekable();
        let mut sweep = Self::default();
        if let Some(name) = words.next_if(|word| !word.contains('=')) {
            sweep = preset(name).ok_or_else(|| {
                format!(
                    "there is no sweep {name:?}; give one of {NAMES}, or settings like size=1:8M:*2,verb=write,send"
                )
            })?;
        }
        while let Some(word) = words.next() {
            // The values up to the next setting belong to this one.
            let (key, first) = word.split_once('=').unwrap_or((word, ""));
            let mut texts = vec![first];
            while let Some(value) = words.next_if(|word| !word.contains('=')) {
                texts.push(value);
            }
            let set = sweep.set(key, &texts);
            set.map_err(|error| format!("{key}: {error}"))?;
        }
        sweep.check()?;
        Ok(sweep)
    }
}

/// Parses numbers and ranges of numbers, each value once.
fn numbers(
    texts: &[&str],
    least: u64,
    most: u64,
    parse: fn(&str) -> Result<u64, String>,
) -> Result<Vec<u32>, String> {
    let mut numbers = Vec::new();
    for text in texts {
        for value in values(text, parse)? {
            let number = u32::try_from(value).ok();
            let number = number.filter(|_| (least..=most).contains(&value));
            let number =
                number.ok_or_else(|| format!("{value} is not in the range {least} to {most}"))?;
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
    }
    Ok(numbers)
}

/// Parses words, each once.
fn words<T: PartialEq>(
    texts: &[&str],
    parse: fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut words = Vec::new();
    for text in texts {
        let word = parse(text)?;
        if !words.contains(&word) {
            words.push(word);
        }
    }
    Ok(words)
}

fn whole(text: &str) -> Result<u64, String> {
    let number = text.parse();
    number.map_err(|_| format!("{text:?} is no whole number"))
}

fn verb(text: &str) -> Result<Verb, String> {
    match text.to_ascii_lowercase().as_str() {
        "write" => Ok(Verb::Write),
        "read" => Ok(Verb::Read),
        "send" => Ok(Verb::Send),
        _ => Err(format!("give write, read or send, not {text:?}")),
    }
}

fn wait(text: &str) -> Result<WaitMode, String> {
    match text.to_ascii_lowercase().as_str() {
        "busy" => Ok(WaitMode::Busy),
        "event" | "events" => Ok(WaitMode::Event),
        _ => Err(format!("give busy or event, not {text:?}")),
    }
}

fn inline(text: &str) -> Result<InlineName, String> {
    if text == "all" {
        return Ok(InlineName::Always);
    }
    let most = options::size(text)
        .ok()
        .and_then(|most| u32::try_from(most).ok());
    match most {
        Some(0) => Ok(InlineName::Never),
        Some(most) => Ok(InlineName::UpTo(most)),
        None => Err(format!(
            "give the most bytes that a work request carries, 0 for none, or all, not {text:?}"
        )),
    }
}

/// The most values of one setting: a range with a small step is a mistake.
const MAX_VALUES: usize = 200;

/// Returns the values of `text`: one value, or those from the first to the last one of a range. `parse` reads one
/// value.
fn values(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Vec<u64>, String> {
    let parts: Vec<_> = text.split(':').collect();
    let (first, last, step) = match parts[..] {
        [value] => return Ok(vec![parse(value)?]),
        [first, last] => (first, last, "*2"),
        [first, last, step] => (first, last, step),
        _ => return Err(form(text)),
    };
    let (first, last) = (parse(first)?, parse(last)?);
    if first > last {
        return Err(format!("the range {text} ends before it begins"));
    }
    let (is_factor, step) = match (step.strip_prefix('*'), step.strip_prefix('+')) {
        (Some(factor), _) => (true, factor.parse().map_err(|_| form(text))?),
        (_, Some(addend)) => (false, parse(addend)?),
        _ => return Err(form(text)),
    };
    if step == 0 || (is_factor && (step == 1 || first == 0)) {
        return Err(format!("the range {text} never ends"));
    }
    let next = |value: u64| {
        if is_factor {
            value.checked_mul(step)
        } else {
            value.checked_add(step)
        }
    };
    let range = std::iter::successors(Some(first), |value| {
        next(*value).filter(|value| *value <= last)
    });
    let values: Vec<_> = range.take(MAX_VALUES + 1).collect();
    if values.len() > MAX_VALUES {
        return Err(format!(
            "the range {text} has more than {MAX_VALUES} values"
        ));
    }
    Ok(values)
}

fn form(text: &str) -> String {
    format!(
        "{text} is no value and no range; a range is FIRST:LAST:*FACTOR or FIRST:LAST:+STEP, like 1:8M:*2"
    )
}

/// The number of operations that are posted and not complete, as in `ib_write_bw`.
const DEFAULT_DEPTH: u32 = 128;

/// The number of operations above [`LARGE`] that are posted and not complete: 128 would take seconds to complete at the
/// end of a run.
const DEPTH_OF_LARGE: u32 = 16;

/// The size in bytes from which fewer operations are posted at once.
const LARGE: u32 = 1 << 20;

/// Of so many operations one makes a completion: half of the default depth, so that there is always one under way.
const DEFAULT_SIGNAL: u32 = 64;

impl Sweep {
    /// Returns the depths of a measurement of bytes per second.
    fn depths(&self) -> Vec<u32> {
        let default = if self.sizes.iter().any(|size| *size > LARGE) {
            DEPTH_OF_LARGE
        } else {
            DEFAULT_DEPTH
        };
        self.depths.clone().unwrap_or_else(|| vec![default])
    }

    /// Returns of how many operations one makes a completion. All curves have the same value, unless the user gave
    /// several.
    fn signals(&self, figure: FigureName) -> Vec<u32> {
        let least = self.depths().into_iter().min().unwrap_or(1);
        let default = match figure {
            FigureName::Time => 1,
            FigureName::Rate => (least / 2).clamp(1, DEFAULT_SIGNAL),
        };
        self.signals.clone().unwrap_or_else(|| vec![default])
    }

    /// Measures only times, or only rates, or both.
    pub(super) fn measure_only(&mut self, times: bool, rates: bool) {
        let wanted = [(FigureName::Time, times), (FigureName::Rate, rates)];
        let wanted = wanted.into_iter().filter(|(_, is_wanted)| *is_wanted);
        self.figures = wanted.map(|(figure, _)| figure).collect();
    }
}

/// The most measurements of a sweep: half an hour with the default times.
const MAX_POINTS: usize = 2000;

/// What a sweep measures with the devices of two hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SweepPlan {
    /// What is measured, in the order of the report.
    pub(super) points: Vec<Operations>,
    /// What the devices cannot do although it was asked for.
    pub(super) refused: Vec<String>,
    /// What is left out by the nature of the sweep.
    pub(super) notes: Vec<String>,
}

impl Sweep {
    /// Returns every combination of the values that any device can measure, in the order of the report: figure, curve,
    /// size.
    fn points(&self) -> Vec<Operations> {
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
        let is_read = point.verb == Verb::Read;
        let is_time = point.figure == FigureName::Time;
        let repeats = has_others && point.inline != InlineName::Never && !point.is_inline();
        let is_inline_read = is_read && point.inline != InlineName::Never;
        // The end that dials waits for each READ.
        let is_unsignalled_read = is_read && is_time && point.signal > 1;
        // A WRITE makes no event at the end that it arrives at.
        let is_silent = is_time && point.verb == Verb::Write && point.wait == WaitMode::Event;
        !(repeats || is_inline_read || is_unsignalled_read || is_silent)
    }
}

/// Returns what a sweep measures with devices that have these limits.
pub(super) fn planned(sweep: &Sweep, limits: VerbsLimits) -> SweepPlan {
    let mut plan = SweepPlan::default();
    let most = limits.inline_bytes;
    for point in sweep.points() {
        let refusal = match (point.verb, point.inline) {
            (Verb::Read, _) if limits.reads == 0 => {
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

const NAMES: &str = "inline, verb, poll, signal, chunk";

fn preset(name: &str) -> Option<Sweep> {
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
            verbs: vec![Verb::Write, Verb::Read, Verb::Send],
            sizes: doubled(2, 9, 2),
            figures: both,
            ..Sweep::default()
        },
        // What does it cost to sleep until a completion?
        "poll" => Sweep {
            sizes: doubled(2, 8, 2),
            waits: vec![WaitMode::Busy, WaitMode::Event],
            signals: Some(vec![1]),
            figures: both,
            ..Sweep::default()
        },
        // What does each completion cost?
        "signal" => Sweep {
            verbs: vec![Verb::Write],
            sizes: doubled(8, 7, 2),
            signals: Some(vec![1, 4, 16, 64]),
            figures: vec![FigureName::Rate],
            ..Sweep::default()
        },
        // How large must a chunk be, one at a time and pipelined?
        "chunk" => Sweep {
            verbs: vec![Verb::Write],
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
    use crate::options;

    fn sweep(text: &str) -> Result<Sweep, String> {
        text.parse()
    }

    #[test]
    fn settings_have_lists_and_ranges() {
        let sweep = sweep("size=1:8M:*2,verb=write,send,inline=0,220").unwrap();
        assert_eq!(sweep.sizes.len(), 24);
        assert_eq!(sweep.verbs, [Verb::Write, Verb::Send]);
        assert_eq!(sweep.inlines, [InlineName::Never, InlineName::UpTo(220)]);
        assert_eq!(sweep.depths(), [16]);
        assert_eq!(sweep.signals(FigureName::Rate), [8]);
        assert_eq!(sweep.signals(FigureName::Time), [1]);
    }

    #[test]
    fn a_name_can_be_refined() {
        let inline = sweep("inline").unwrap();
        assert_eq!(inline.sizes.len(), 10);
        let refined = sweep("inline,size=64,64,128,poll=event").unwrap();
        assert_eq!(refined.sizes, [64, 128]);
        assert_eq!(refined.waits, [WaitMode::Event]);
        assert_eq!(refined.inlines, inline.inlines);
        let chunk = sweep("chunk").unwrap();
        assert_eq!(chunk.signals(FigureName::Rate), [1]);
    }

    #[test]
    fn what_cannot_be_measured_is_a_sentence() {
        for (text, words) in [
            ("", "there is no sweep \"\"; give one of inline, verb"),
            ("inlin", "there is no sweep \"inlin\""),
            ("inline,verb", "verb: give write, read or send, not \"\""),
            ("speed=1", "speed is none of them"),
            ("size=0", "size: 0 is not in the range 1 to 1073741824"),
            ("size=2G", "not in the range"),
            ("size=1:1M:+1", "more than 200 values"),
            ("verb=atomic", "give write, read or send, not \"atomic\""),
            ("poll=often", "give busy or event"),
            ("inline=x", "give the most bytes"),
            ("signal=0", "signal: 0 is not in the range"),
            ("signal=two", "\"two\" is no whole number"),
            ("depth=8,signal=16", "with signal=16 none of 8 operations"),
            ("verb=read,inline=all", "none of these operations"),
            ("size=1:100:+1,signal=1:64:+1", "at most 2000 are possible"),
        ] {
            let error = sweep(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    fn sizes(text: &str) -> Result<Vec<u64>, String> {
        values(text, options::size)
    }

    #[test]
    fn a_range_has_all_values_up_to_its_last() {
        assert_eq!(sizes("64"), Ok(vec![64]));
        assert_eq!(sizes("1:9:*2"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(sizes("1:8"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(sizes("1K:4K:+1K"), Ok(vec![1024, 2048, 3072, 4096]));
        assert_eq!(sizes("0:2:+1"), Ok(vec![0, 1, 2]));
        assert_eq!(sizes("7:7:*3"), Ok(vec![7]));
        let last = u64::MAX.to_string();
        assert_eq!(sizes(&format!("{last}:{last}:*2")), Ok(vec![u64::MAX]));
    }

    #[test]
    fn a_range_that_never_ends_is_refused() {
        for (text, words) in [
            ("8:1", "ends before it begins"),
            ("0:8:*2", "never ends"),
            ("1:8:*1", "never ends"),
            ("1:8:+0", "never ends"),
            ("1:1M:+1", "more than 200 values"),
            ("1:8:2", "a range is"),
            ("1:2:3:4", "a range is"),
            ("1:8:*x", "a range is"),
            ("x:8", "give bytes"),
        ] {
            let error = sizes(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

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
