//! The text of `--sweep`: a name, settings with their values, or both.

use std::str::FromStr;

use super::points::{MAX_POINTS, NAMES, preset};
use crate::{
    cli::args::parse,
    perf::{
        messages::MAX_OPERATION_BYTES,
        report::{
            host_summary::WaitName,
            operations::{FigureName, InlineName, VerbName},
        },
    },
};

/// The most operations that are posted and not complete. Devices allow some ten thousand.
const MAX_DEPTH: u64 = 16_384;

impl Sweep {
    /// Sets a setting to these values.
    fn set(&mut self, key: &str, texts: &[&str]) -> Result<(), String> {
        match key {
            "size" => self.sizes = numbers(texts, 1, u64::from(MAX_OPERATION_BYTES), parse::size)?,
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

fn verb(text: &str) -> Result<VerbName, String> {
    match text.to_ascii_lowercase().as_str() {
        "write" => Ok(VerbName::Write),
        "read" => Ok(VerbName::Read),
        "send" => Ok(VerbName::Send),
        _ => Err(format!("give write, read or send, not {text:?}")),
    }
}

fn wait(text: &str) -> Result<WaitName, String> {
    match text.to_ascii_lowercase().as_str() {
        "busy" => Ok(WaitName::Busy),
        "event" | "events" => Ok(WaitName::Event),
        _ => Err(format!("give busy or event, not {text:?}")),
    }
}

fn inline(text: &str) -> Result<InlineName, String> {
    if text == "all" {
        return Ok(InlineName::Always);
    }
    let most = parse::size(text)
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
///
/// # Errors
///
/// One sentence for the user.
pub(super) fn values(
    text: &str,
    parse: impl Fn(&str) -> Result<u64, String>,
) -> Result<Vec<u64>, String> {
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

/// What `--sweep` asks for: every combination of these values that can be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(super) verbs: Vec<VerbName>,
    /// The sizes of operations in bytes.
    pub(super) sizes: Vec<u32>,
    pub(super) inlines: Vec<InlineName>,
    pub(super) waits: Vec<WaitName>,
    /// Of how many operations one makes a completion; none for what suits the depth.
    pub(super) signals: Option<Vec<u32>>,
    /// How many operations are posted at once; none for what suits the sizes. A ping-pong has one.
    pub(super) depths: Option<Vec<u32>>,
    pub(super) figures: Vec<FigureName>,
}

/// What is measured if only one setting is given: SENDs of the size of a cache line, not inline, with polling.
impl Default for Sweep {
    fn default() -> Self {
        Self {
            verbs: vec![VerbName::Send],
            sizes: vec![64],
            inlines: vec![InlineName::Never],
            waits: vec![WaitName::Busy],
            signals: None,
            depths: None,
            figures: vec![FigureName::Time, FigureName::Rate],
        }
    }
}

impl Sweep {
    /// Returns the depths of a measurement of bytes per second.
    pub(super) fn depths(&self) -> Vec<u32> {
        let default = if self.sizes.iter().any(|size| *size > LARGE) {
            DEPTH_OF_LARGE
        } else {
            DEFAULT_DEPTH
        };
        self.depths.clone().unwrap_or_else(|| vec![default])
    }

    /// Returns of how many operations one makes a completion. All curves have the same value, unless the user gave
    /// several.
    pub(super) fn signals(&self, figure: FigureName) -> Vec<u32> {
        let least = self.depths().into_iter().min().unwrap_or(1);
        let default = match figure {
            FigureName::Time => 1,
            FigureName::Rate => (least / 2).clamp(1, DEFAULT_SIGNAL),
        };
        self.signals.clone().unwrap_or_else(|| vec![default])
    }

    /// Measures only times, or only rates, or both.
    pub(in crate::cli::rdperf) fn measure_only(&mut self, times: bool, rates: bool) {
        let wanted = [(FigureName::Time, times), (FigureName::Rate, rates)];
        let wanted = wanted.into_iter().filter(|(_, is_wanted)| *is_wanted);
        self.figures = wanted.map(|(figure, _)| figure).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::parse;

    fn sweep(text: &str) -> Result<Sweep, String> {
        text.parse()
    }

    #[test]
    fn settings_have_lists_and_ranges() {
        let sweep = sweep("size=1:8M:*2,verb=write,send,inline=0,220").unwrap();
        assert_eq!(sweep.sizes.len(), 24);
        assert_eq!(sweep.verbs, [VerbName::Write, VerbName::Send]);
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
        assert_eq!(refined.waits, [WaitName::Event]);
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
        values(text, parse::size)
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
}
