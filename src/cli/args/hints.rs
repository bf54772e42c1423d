//! What a usage error says to those who type the options of rsync, scp or a shell, and the short help of `-h`. Pure, no
//! I/O.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of rsync, scp, ssh and iperf3 that mean nothing here, or something else, and what to give instead.
const HABITS: [(&str, &str, &str); 20] = [
    (
        "rdcp",
        "-z",
        "rdcp does not compress; over a slow link: rdpipe HOST:'zstd < FILE' :'zstd -d > FILE'",
    ),
    (
        "rdcp",
        "--compress",
        "rdcp does not compress; over a slow link: rdpipe HOST:'zstd < FILE' :'zstd -d > FILE'",
    ),
    (
        "rdcp",
        "--progress",
        "a terminal shows the progress without an option; -q turns it off",
    ),
    (
        "rdcp",
        "--port",
        "-p PORT-PORT is for firewalls; -a keeps times, modes and owners, and --ssh-opt -oPort=N is the port of ssh",
    ),
    ("rdcp", "-t", "-a keeps times, modes and owners"),
    ("rdcp", "-l", "-r and -a copy links as links"),
    (
        "rdcp",
        "-u",
        "--update replaces a file only if that of the source is newer",
    ),
    (
        "rdcp",
        "-c",
        "--skip-same compares sizes and times; --checksum prints a digest of each copied file",
    ),
    (
        "rdcp",
        "-i",
        "the key of ssh is --ssh-opt '-i FILE'; -v prints each path",
    ),
    ("rdcp", "--append", "--resume continues files that were cut"),
    (
        "rdcp",
        "--rsync-path",
        "--remote-rdpipe PATH is the program on the other host",
    ),
    (
        "rdcp",
        "--exclude-from",
        "give --exclude PATTERN for each line",
    ),
    (
        "rdcp",
        "--stats",
        "the last line has the counts; -v says more",
    ),
    ("rdforward", "-N", "rdforward runs no command; leave -N out"),
    ("rdperf", "-c", "give the host alone: rdperf HOST"),
    (
        "rdperf",
        "-s",
        "rdperf starts the other end over ssh; without ssh: rdperf --listen",
    ),
    ("rdperf", "-t", "the time of a run is --time SECS"),
    ("rdperf", "-P", "the number of streams is --streams N"),
    (
        "rdperf",
        "-R",
        "both directions are measured without an option",
    ),
    (
        "rdcp",
        "--partial",
        "parts of large files are always kept; --resume continues them",
    ),
];

/// Returns what to give in place of `-P 2222`, which scp takes for the port of ssh: here the number would be a source.
/// `is_there` returns true for a path that exists.
pub(crate) fn scp_port(words: &[String], is_there: impl Fn(&str) -> bool) -> Option<String> {
    let is_number = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
    let mut pairs = words.iter().zip(words.iter().skip(1));
    let found = pairs.find(|(option, number)| *option == "-P" && is_number(number));
    let (_, number) = found.filter(|(_, number)| !is_there(number))?;
    Some(port_hint(number))
}

fn port_hint(number: &str) -> String {
    format!(
        "-P makes missing directories, and there is no file {number} to copy; the port of ssh is --ssh-opt -oPort={number}"
    )
}

/// Adds a hint to a usage error of `program`, in place of the tip to pass an option as a value. `words` is the command
/// line without the program.
pub(super) fn add_hint(program: &str, error: &mut clap::Error, words: &[String]) {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    let wrong = wrong.split(' ').next().unwrap_or_default().to_owned();
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    let habit = HABITS
        .iter()
        .find(|(name, option, _)| *name == program && *option == wrong)
        .map(|(_, _, hint)| (*hint).to_owned());
    let unquoted = || {
        (program == "rdpipe" && is_unknown)
            .then(|| quoted(words, &wrong))
            .flatten()
    };
    let joined_port = || {
        let number = words.iter().find_map(|word| word.strip_prefix("-P"));
        let number = number.filter(|number| number.starts_with(|c: char| c.is_ascii_digit()));
        number
            .filter(|_| program == "rdcp" && is_unknown)
            .map(port_hint)
    };
    if let Some(hint) = habit.or_else(unquoted).or_else(joined_port) {
        let hint = ContextValue::StyledStrs(vec![hint.into()]);
        error.insert(ContextKind::Suggested, hint);
        error.remove(ContextKind::SuggestedArg);
        return;
    }
    // Tips that help no user: operands that begin with a dash are rare, and one option is not for users.
    for (kind, text) in [
        (ContextKind::Suggested, "as a value"),
        (ContextKind::SuggestedArg, "--agent"),
    ] {
        if error
            .get(kind)
            .is_some_and(|tip| tip.to_string().contains(text))
        {
            error.remove(kind);
        }
    }
}

/// Returns the advice to quote the command of a segment, if `wrong` is behind one.
fn quoted(words: &[String], wrong: &str) -> Option<String> {
    let at = words.iter().position(|word| word.starts_with(wrong))?;
    let first = words[..at].iter().rposition(|word| word.contains(':'))?;
    let behind = words[at..].iter().take_while(|word| !word.contains(':'));
    let command: Vec<_> = words[first..at]
        .iter()
        .chain(behind)
        .map(String::as_str)
        .collect();
    let command = command.join(" ");
    let (host, command) = command.split_once(':')?;
    Some(format!(
        "put the whole command into quotes: {host}:'{command}'"
    ))
}

/// Returns the short help: what the program is for, its usage and its first examples, on one screen.
pub(super) fn short(program: &str, help: &str) -> String {
    let paragraphs: Vec<_> = help.split("\n\n").collect();
    let is_example = |line: &str| line.trim_start().starts_with("$ ") || line.contains("] $ ");
    let is_shown =
        |text: &&&str| text.trim_start().starts_with("Usage:") || text.lines().any(is_example);
    let about = paragraphs
        .first()
        .filter(|text| !text.starts_with("Usage:"));
    let shown = about.into_iter().chain(paragraphs.iter().filter(is_shown));
    let shown: Vec<_> = shown.map(|text| text.trim_end()).collect();
    let mut rows = 0;
    let shown = shown.join("\n\n");
    let lines = shown.lines().take_while(|line| {
        rows += line.chars().count().div_ceil(COLUMNS).max(1);
        rows <= SHORT_ROWS - 2
    });
    let lines: Vec<_> = lines.collect();
    format!(
        "{}\n\n{program} --help explains all options and forms.\n",
        lines.join("\n").trim_end()
    )
}

/// The rows of a terminal, without one for the prompt.
const SHORT_ROWS: usize = 23;

/// The columns of a terminal.
const COLUMNS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_scp_is_no_source() {
        let hint = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            scp_port(&words, |path| path == "2021")
        };
        let said = hint(&["-r", "-P", "2222", "a", "h:b"]).unwrap();
        assert!(said.ends_with("--ssh-opt -oPort=2222"), "{said}");
        for words in [
            &["-P", "2021", "h:b"][..],
            &["-P", "a", "h:b"],
            &["2222", "-P"],
        ] {
            assert_eq!(hint(words), None, "{words:?}");
        }
    }
}
