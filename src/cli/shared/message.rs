//! Messages on stderr: one plain sentence each, behind the names of program and host.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    sync::{Arc, Mutex, PoisonError},
};

use indicatif::ProgressBar;
use serde::Serialize;

use crate::{advice::advice, cli::args::MessageOptions, host::host_name};

/// Where a program talks to its user. Clones share the terminal.
#[derive(Debug, Clone)]
pub(crate) struct Console {
    program: &'static str,
    host: String,
    quiet: bool,
    verbose: bool,
    json: bool,
    /// The bar that has to make room for a message.
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Console {
    /// The console of `program`, on this host.
    #[must_use]
    pub(crate) fn new(program: &'static str, options: MessageOptions) -> Self {
        Self {
            program,
            host: host_name(),
            quiet: options.quiet,
            verbose: options.verbose,
            json: options.json,
            bar: Arc::default(),
        }
    }

    /// Says what failed.
    pub(crate) fn error(&self, text: &str) {
        self.say(Level::Error, text);
    }

    /// Says what failed on another host.
    pub(crate) fn error_on(&self, host: &str, text: &str) {
        let there = Self {
            host: host.to_owned(),
            ..self.clone()
        };
        there.error(text);
    }

    /// Says what is worth a look, but stops nothing. Not with `-q`.
    pub(crate) fn warn(&self, text: &str) {
        self.say(Level::Warning, text);
    }

    /// Says what everybody wants to know. Not with `-q`.
    pub(crate) fn note(&self, text: &str) {
        self.say(Level::Note, text);
    }

    /// Says what whoever asked with `-v` wants to know.
    pub(crate) fn detail(&self, text: &str) {
        self.say(Level::Detail, text);
    }

    /// Says what the run is useless without, even with `-q`: `plain`, or with `--json` the object.
    pub(crate) fn tell(&self, plain: &str, event: &impl Serialize) {
        if self.json {
            self.event(event);
        } else {
            self.write(&format!("{}: {}: {plain}\n", self.program, self.host));
        }
    }

    /// Passes on a line that somebody else wrote, behind the writer's name; also with `-q`, because it is not
    /// ours to judge.
    pub(crate) fn words(&self, writer: &str, line: &str) {
        let line: Vec<_> = line.split('\t').map(harmless).collect();
        self.write(&format!("{writer}: {}\n", line.join("\t")));
    }

    /// A text of several lines, as it is.
    pub(crate) fn lines(&self, lines: &[String]) {
        self.write(&(lines.join("\n") + "\n"));
    }

    /// Whether the user wants JSON.
    #[must_use]
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a progress bar is welcome.
    #[must_use]
    pub(crate) fn wants_progress(&self) -> bool {
        !self.quiet && !self.json
    }

    /// The name of this host.
    #[must_use]
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Messages make room for `bar` from now on, or for none.
    pub(crate) fn set_bar(&self, bar: Option<ProgressBar>) {
        *self.bar.lock().unwrap_or_else(PoisonError::into_inner) = bar;
    }

    fn say(&self, level: Level, text: &str) {
        if !self.wants(level) {
            return;
        }
        if self.json {
            self.event(&MessageEvent {
                event: level,
                message: text,
            });
        } else {
            self.write(&self.line(level, text));
        }
    }

    fn wants(&self, level: Level) -> bool {
        match level {
            Level::Error => true,
            Level::Warning | Level::Note => !self.quiet,
            Level::Detail => self.verbose,
        }
    }

    /// One line, whatever a peer has put into the text.
    fn line(&self, level: Level, text: &str) -> String {
        let kind = if level == Level::Warning {
            "warning: "
        } else {
            ""
        };
        format!(
            "{}: {}: {kind}{}\n",
            self.program,
            self.host,
            harmless(text)
        )
    }

    /// One object on one line.
    pub(crate) fn event(&self, event: &impl Serialize) {
        self.write(&self.json_line(event));
    }

    fn json_line(&self, event: &impl Serialize) -> String {
        let line = EventLine {
            event,
            program: self.program,
            host: &self.host,
        };
        // Only a map without string keys could fail, and none of ours is one.
        let json = serde_json::to_string(&line).unwrap_or_default();
        format!("{json}\n")
    }

    /// One write, so that lines of several programs do not mix; a stderr that is closed is no reason
    /// to fail.
    fn write(&self, line: &str) {
        let write = || {
            let _ = io::stderr().lock().write_all(line.as_bytes());
        };
        match &*self.bar.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

/// What kind of message it is, and its name in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Error,
    Warning,
    Note,
    Detail,
}

#[derive(Serialize)]
struct MessageEvent<'a> {
    event: Level,
    message: &'a str,
}

/// What every object says besides its own.
#[derive(Serialize)]
struct EventLine<'a, E> {
    #[serde(flatten)]
    event: &'a E,
    program: &'static str,
    host: &'a str,
}

/// The whole story of an error in one sentence: its causes, outermost first, without those that a
/// message before them has told already, and last what the user can do about it.
#[must_use]
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text + advice(error)
}

/// The text in one line, without the means to command a terminal: some of it comes from the peer.
fn harmless(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn console(options: MessageOptions) -> Console {
        let mut console = Console::new("rdrecv", options);
        console.host = "hostB".to_owned();
        console
    }

    #[test]
    fn lines_name_program_and_host() {
        let console = console(MessageOptions::default());
        assert_eq!(
            console.line(Level::Error, "no route"),
            "rdrecv: hostB: no route\n"
        );
        assert_eq!(
            console.line(Level::Warning, "slow"),
            "rdrecv: hostB: warning: slow\n"
        );
        assert!(!host_name().is_empty());
    }

    #[test]
    fn a_peer_cannot_write_on_the_terminal() {
        let console = console(MessageOptions::default());
        let line = console.line(
            Level::Error,
            "gave up:\x1b[2J\r\nrdrecv: hostB: fine\u{9b}x\n",
        );
        assert_eq!(
            line,
            "rdrecv: hostB: gave up:\\u{1b}[2J\\r rdrecv: hostB: fine\\u{9b}x\n"
        );
    }

    #[test]
    fn options_decide_who_is_heard() {
        let heard = |quiet, verbose| {
            let console = console(MessageOptions {
                verbose,
                quiet,
                json: false,
            });
            [Level::Error, Level::Warning, Level::Note, Level::Detail]
                .map(|level| console.wants(level))
        };
        assert_eq!(heard(false, false), [true, true, true, false]);
        assert_eq!(heard(false, true), [true, true, true, true]);
        assert_eq!(heard(true, false), [true, false, false, false]);
    }

    #[test]
    fn json_is_one_line() {
        let console = console(MessageOptions {
            json: true,
            ..MessageOptions::default()
        });
        let line = console.json_line(&MessageEvent {
            event: Level::Warning,
            message: "a\n\"b\"",
        });
        assert_eq!(
            line,
            "{\"event\":\"warning\",\"message\":\"a\\n\\\"b\\\"\",\"program\":\"rdrecv\",\"host\":\"hostB\"}\n"
        );
    }

    #[test]
    fn causes_are_told_once() {
        let refused: Result<(), _> = Err(io::Error::other("refused"));
        let error = refused
            .context("cannot connect: refused")
            .context("rdsend")
            .unwrap_err();
        assert_eq!(sentence(&error), "rdsend: cannot connect: refused");

        let error = crate::Key::from_file("/nonexistent").unwrap_err();
        let plain = error.to_string();
        assert_eq!(sentence(&error.into()), plain);
    }

    #[test]
    fn a_message_makes_room_under_a_bar() {
        let console = console(MessageOptions::default());
        console.set_bar(Some(ProgressBar::hidden()));
        console.detail("not shown");
        console.write("");
        console.set_bar(None);
    }
}
