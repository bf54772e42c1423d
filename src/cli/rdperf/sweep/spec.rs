//! The text of `--sweep`: a name, settings with their values, or both.

use std::str::FromStr;

use super::{
    choice::Sweep,
    points::MAX_POINTS,
    presets::{NAMES, preset},
    values::values,
};
use crate::{
    cli::args::parse,
    perf::{
        messages::MAX_OPERATION_BYTES,
        report::{
            operations::{FigureName, InlineName, VerbName},
            wait_name::WaitName,
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
