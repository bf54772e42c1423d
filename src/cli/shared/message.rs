//! What a program tells its user: messages on stderr, each one sentence after the names of program and host; the events
//! that the library traces, as such messages; and texts on stdout.

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::{Arc, Mutex, Once, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use serde::Serialize;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::{
    line_budgets::{LINES_A_SECOND, LineBudgets},
    report::counted,
    run::Exit,
    stderr::{ShownLines, StderrQueue},
};
use crate::{
    Encryption,
    advice::{advice, for_limit},
    cli::args::{JsonTarget, MessageOptions, StreamOptions},
    host::host_name,
    printable::{self, one_line},
    process::{self, Stdout},
};

/// Writes the messages of a program to stderr, through a queue: no method waits until a message is read, except
/// [`flush`](Self::flush) and [`room`](Self::room). Clones share the queue.
#[derive(Debug, Clone)]
pub(crate) struct Console {
    program: &'static str,
    host: String,
    quiet: bool,
    verbose: u8,
    json: Option<JsonOutput>,
    /// The exit code of the first event of `--json` that could not be written.
    unwritten: Arc<OnceLock<Exit>>,
    queue: StderrQueue,
    budgets: LineBudgets,
}

impl Console {
    /// Returns the console of `program` on this host.
    pub(crate) fn new(program: &'static str, options: &MessageOptions) -> Self {
        Self {
            program,
            host: host_name(),
            quiet: options.quiet,
            verbose: options.verbose,
            json: None,
            unwritten: Arc::default(),
            queue: StderrQueue::new(),
            budgets: LineBudgets::default(),
        }
    }

    /// Returns the console of a program, which also shows the events that the library traces.
    pub(crate) fn of_program(program: &'static str, options: &MessageOptions) -> Self {
        let target = options.json.target.clone();
        let mut console = Self::new(program, options);
        match target.map(JsonOutput::open).transpose() {
            Ok(json) => console.json = json,
            Err(why) => console.refuse(&why, Exit::Local),
        }
        show_on(&console);
        console
    }

    /// Returns the console of a program whose stdout is data, as [`of_program`](Self::of_program) does.
    pub(crate) fn beside_data(program: &'static str, options: &MessageOptions) -> Self {
        if options.json.target == Some(JsonTarget::Stdout) {
            let why = "--json=- would mix the report with the data on stdout; give --json=FILE";
            Self::new(program, options).refuse(why, Exit::Usage);
        }
        Self::of_program(program, options)
    }

    /// Prints why the program cannot start, and ends it.
    fn refuse(&self, why: &str, exit: Exit) -> ! {
        self.error(why);
        std::process::exit(self.finish(exit).code().into())
    }

    pub(crate) fn error(&self, text: &str) {
        self.say(Level::Error, text);
    }

    /// Prints an error that happened on another host.
    pub(crate) fn error_on(&self, host: &str, text: &str) {
        let there = Self {
            host: host.to_owned(),
            ..self.clone()
        };
        there.error(text);
    }

    /// Prints a warning: a problem that does not end the run. `-q` suppresses it.
    pub(crate) fn warn(&self, text: &str) {
        self.say(Level::Warning, text);
    }

    /// Prints a note, which every user sees unless `-q` is given.
    pub(crate) fn note(&self, text: &str) {
        self.say(Level::Note, text);
    }

    /// Notes at the start of a program that its data is not encrypted, if its user has chosen that.
    pub(crate) fn note_encryption(&self, stream: &StreamOptions) {
        if stream.encrypt == Encryption::Never {
            self.note("the data is not encrypted (--encrypt never)");
        }
    }

    /// Prints a detail, which appears with `-v` only.
    pub(crate) fn detail(&self, text: &str) {
        self.say(Level::Detail, text);
    }

    /// Prints a minor detail, such as how ssh is called, which appears with `-vv` only.
    pub(crate) fn minor(&self, text: &str) {
        self.say(Level::Minor, text);
    }

    /// Prints what the user needs to continue, such as a ticket: the text `plain`, and for `--json` the object `event`.
    /// `-q` does not suppress it.
    pub(crate) fn tell(&self, plain: &str, event: &impl Serialize) {
        self.event(event);
        if !self.is_json() {
            let text = printable::lines(plain);
            self.write(format!("{}: {}: {text}\n", self.program, self.host));
        }
    }

    /// Prints a line that another program wrote, after the name of that writer. `-q` does not suppress it, because it
    /// may be an error.
    pub(crate) fn program_line(&self, writer: &str, line: &str) {
        let line: Vec<_> = line.split('\t').map(one_line).collect();
        self.write(format!("{writer}: {}\n", line.join("\t")));
    }

    /// Prints several lines without the names of program and host.
    pub(crate) fn lines(&self, lines: &[String]) {
        self.write(printable::lines(&lines.join("\n")) + "\n");
    }

    /// Returns true if stderr is JSON in place of text.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self.json, Some(JsonOutput::Stderr))
    }

    pub(crate) fn has_json(&self) -> bool {
        self.json.is_some()
    }

    /// Returns true if stdout gets the report in JSON.
    pub(crate) fn prints_json(&self) -> bool {
        matches!(self.json, Some(JsonOutput::Stdout))
    }

    /// Returns true if the options allow a progress bar.
    pub(crate) fn wants_progress(&self) -> bool {
        !self.quiet && !self.is_json()
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Sets the lines below the messages; `None` if there are none.
    pub(crate) fn set_bar(&self, bar: Option<ShownLines>) {
        self.queue.set_bar(bar);
    }

    /// Removes the lines below the messages, and waits until the terminal shows them no more.
    pub(crate) fn clear_bar(&self) {
        self.queue.clear_bar();
    }

    /// Waits until there is room for more [lines](Self::program_line) of other programs.
    /// Cancel safe.
    pub(crate) async fn room(&self) {
        self.queue.room().await;
    }

    /// Prints a notice about another host, with `print`. While stderr is not read, notices beyond a limit are left out
    /// and counted: a hostile host sends any number of them.
    pub(crate) fn notice(&self, print: impl FnOnce(&Self)) {
        if !self.queue.leaves_out() {
            self.warn_of_left_out();
            print(self);
        }
    }

    /// Prints a notice that a client has caused, after the name of the client: with `print`, unless the client has
    /// caused too many lines. Those are left out and counted.
    pub(crate) fn client_notice(&self, client: &str, print: impl FnOnce(&Self)) {
        let Some(left_out) = self.budgets.admit(client, Instant::now()) else {
            return;
        };
        self.warn_of_lines(client, left_out);
        self.notice(print);
    }

    /// Prints how many lines of each client were left out, if the client has not caused a line since.
    pub(crate) fn report_left_out(&self) {
        for (client, count) in self.budgets.take_left_out(Instant::now()) {
            self.warn_of_lines(&client, count);
        }
    }

    fn warn_of_lines(&self, client: &str, left_out: u64) {
        if left_out > 0 {
            let lines = counted(left_out, "more line", "more lines");
            let text = format!(
                "{lines} of {client} were left out, because there are more than {LINES_A_SECOND} a second"
            );
            self.notice(|console| console.warn(&text));
        }
    }

    fn warn_of_left_out(&self) {
        let count = self.queue.take_left_out();
        if count > 0 {
            self.warn(&format!(
                "{count} notices were left out, because stderr was not read"
            ));
        }
    }

    /// Closes stdout, then waits until all messages have been written. Call this function at the end of `main`. A
    /// terminal or a pager that is not read delays the exit, as it delays that of any program, until a signal ends the
    /// program. It does not delay the end of file of the program that reads the output.
    ///
    /// Returns `exit`, or after a run that succeeded the exit code of a report in JSON that was not written.
    #[must_use]
    pub(crate) fn finish(&self, exit: Exit) -> Exit {
        // Nothing more is written to stdout.
        let _ = process::close_stdout();
        self.flush();
        match self.unwritten.get() {
            Some(unwritten) if exit.code() == 0 => *unwritten,
            _ => exit,
        }
    }

    /// Waits until all messages have been written.
    pub(crate) fn flush(&self) {
        self.warn_of_left_out();
        self.queue.flush();
    }

    /// Makes [`flush`](Self::flush) return soon: a signal has told the program to end.
    pub(crate) fn hurry(&self) {
        self.queue.hurry();
    }

    /// Prints a message.
    pub(crate) fn say(&self, level: Level, text: &str) {
        if !self.wants(level) {
            return;
        }
        let text = without_numbers(text.trim_end()) + for_limit(text);
        if self.is_json() {
            self.event(&MessageEvent {
                event: level,
                message: &text,
            });
        } else {
            self.write(self.line(level, &text));
        }
    }

    /// Returns true if messages of this kind are printed.
    pub(crate) fn wants(&self, level: Level) -> bool {
        match level {
            Level::Error => true,
            Level::Warning | Level::Note => !self.quiet,
            Level::Detail => self.verbose > 0,
            Level::Minor => self.verbose > 1,
        }
    }

    /// Formats a message as exactly one line, even if a peer has put line ends into the text.
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
            one_line(text)
        )
    }

    /// Writes an object as JSON on one line to where `--json` says; without it, does nothing. The first failure is
    /// printed, and [`finish`](Self::finish) returns its exit code.
    pub(crate) fn event(&self, event: &impl Serialize) {
        let exit = match &self.json {
            None => return,
            Some(JsonOutput::Stderr) => return self.write(self.json_line(event)),
            Some(JsonOutput::Stdout) => print_stdout(&self.json_line(event), self).err(),
            Some(JsonOutput::File(report)) => {
                let written = report.write(&self.json_line(event));
                written.err().map(|error| {
                    if self.unwritten.get().is_none() {
                        self.error(&format!("cannot write {}: {error}", report.path.display()));
                    }
                    Exit::Local
                })
            }
        };
        if let Some(exit) = exit {
            let _ = self.unwritten.set(exit);
        }
    }

    /// Writes the report at the end of a run as [`event`](Self::event) does.
    pub(crate) fn end(&self, report: &impl Serialize) {
        self.event(&EndEvent {
            event: "end",
            report,
        });
    }

    fn json_line(&self, event: &impl Serialize) -> String {
        let line = EventLine {
            event,
            program: self.program,
            host: &self.host,
        };
        // Serialization only fails for maps whose keys are not strings, and no event has one.
        let json = serde_json::to_string(&line).unwrap_or_default();
        format!("{json}\n")
    }

    fn write(&self, line: impl Into<String>) {
        self.queue.push(line.into());
    }
}

#[derive(Debug, Clone)]
enum JsonOutput {
    Stderr,
    Stdout,
    File(Arc<JsonFile>),
}

impl JsonOutput {
    fn open(target: JsonTarget) -> Result<Self, String> {
        Ok(match target {
            JsonTarget::Stderr => Self::Stderr,
            JsonTarget::Stdout => Self::Stdout,
            JsonTarget::File(path) => Self::File(Arc::new(JsonFile::open(path)?)),
        })
    }
}

#[derive(Debug)]
struct JsonFile {
    file: File,
    path: PathBuf,
    emptied: Once,
}

impl JsonFile {
    /// Opens the file, and leaves what it has until the first line is written: the program may yet refuse its options.
    fn open(path: PathBuf) -> Result<Self, String> {
        let mut options = File::options();
        // A report may have a key or a ticket.
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options
            .open(&path)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self {
            file,
            path,
            emptied: Once::new(),
        })
    }

    fn write(&self, line: &str) -> io::Result<()> {
        // A pipe and a device have nothing to empty, and say that it failed.
        self.emptied.call_once(|| drop(self.file.set_len(0)));
        (&self.file).write_all(line.as_bytes())
    }
}

/// The kind of a message. In JSON its name is the `event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Error,
    Warning,
    Note,
    Detail,
    /// In JSON a detail like any other.
    #[serde(rename = "detail")]
    Minor,
}

#[derive(Serialize)]
struct MessageEvent<'a> {
    event: Level,
    message: &'a str,
}

/// The report at the end of a run.
#[derive(Serialize)]
struct EndEvent<'a, R> {
    event: &'static str,
    #[serde(flatten)]
    report: &'a R,
}

/// An event with the fields that every JSON object has: program and host.
#[derive(Serialize)]
struct EventLine<'a, E> {
    #[serde(flatten)]
    event: &'a E,
    program: &'static str,
    host: &'a str,
}

/// Returns an error as one sentence: its causes, outermost first, and then what the user can do. A cause that a message
/// before it already contains is left out.
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

/// A warning with the same words is not shown again within this time: a listener without descriptors has one in each
/// pause.
const SAME_EVENT_PAUSE: Duration = Duration::from_secs(60);

/// The modules whose events of less importance are details for the user, which `-v` shows.
const DETAILS: [&str; 4] = [
    "rdpipe::transport::connect::acceptor",
    "rdpipe::transport::rdma::link_setup",
    "rdpipe::forward",
    "rdpipe::transport::control::network_watch",
];

/// The module whose events the programs report themselves: what a stream uses, and why.
const REPORTED: &str = "rdpipe::transport::connect::start";

/// The name of the lines about connections that are no client's.
const OTHERS: &str = "other connections";

/// Shows the events of this process on `console` from now on. The first console of a process shows them.
pub(super) fn show_on(console: &Console) {
    let shown = ShownEvents {
        console: console.clone(),
        last: Mutex::new(None),
    };
    // Only a second console can fail here.
    let _ = tracing::subscriber::set_global_default(shown);
}

/// Shows events on a console.
struct ShownEvents {
    console: Console,
    /// The last warning, and when it was shown.
    last: Mutex<Option<(String, Instant)>>,
}

impl ShownEvents {
    /// Returns true if this text was not shown in the time of [`SAME_EVENT_PAUSE`] before `now`.
    fn is_new(&self, text: &str, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let again =
            matches!(&*last, Some((shown, at)) if shown == text && now - *at < SAME_EVENT_PAUSE);
        if !again {
            *last = Some((text.to_owned(), now));
        }
        !again
    }
}

impl Subscriber for ShownEvents {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_below = |module: &&str| target.starts_with(*module);
        match *metadata.level() {
            tracing::Level::ERROR | tracing::Level::WARN => {
                target.starts_with("rdpipe") && target != REPORTED
            }
            _ => metadata.is_event() && DETAILS.iter().any(is_below),
        }
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        let EventText { mut text, client } = text;
        if let Some(client) = &client {
            text = format!("{client}: {text}");
        }
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            _ => Level::Detail,
        };
        if !self.console.wants(level) {
            return;
        }
        let say = |console: &Console| console.say(level, &text);
        match client {
            Some(client) => self.console.client_notice(&client, say),
            // Strangers cause any number of these.
            None if level == Level::Detail => self.console.client_notice(OTHERS, say),
            None if self.is_new(&text, Instant::now()) => self.console.notice(say),
            None => {}
        }
    }

    // No span is enabled that would need more.
    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

/// An event as a sentence: the message, then the value of each field. If it is about a client, the name comes first.
#[derive(Default)]
struct EventText {
    text: String,
    client: Option<String>,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let rest = std::mem::take(&mut self.text);
            self.text = format!("{value:?}{rest}");
        } else if field.name() == "client" {
            self.client = Some(format!("{value:?}"));
        } else {
            // Writing to a string does not fail.
            let _ = write!(self.text, ": {value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Fails if stdout was closed when the program started, before work is done whose result would be lost.
pub(crate) fn require_stdout(console: &Console) -> Result<(), Exit> {
    if process::is_stdout_closed() {
        console.error("cannot write standard output: it is closed");
        return Err(Exit::Local);
    }
    Ok(())
}

/// Writes a text for people to stdout: lines, with escapes in place of what is not printable.
/// Fails as [`print_stdout`] does.
pub(crate) fn print_lines(text: &str, console: &Console) -> Result<(), Exit> {
    print_stdout(&printable::lines(text), console)
}

/// Writes a text to stdout as it is.
/// The error is the exit code, after the message was printed.
pub(crate) fn print_stdout(text: &str, console: &Console) -> Result<(), Exit> {
    let written = Stdout.write_all(text.as_bytes());
    written.map_err(|error| unwritten_stdout(&error, console))
}

/// Prints that stdout could not be written, and returns the exit code. A reader that went away is no error to
/// print.
pub(crate) fn unwritten_stdout(error: &io::Error, console: &Console) -> Exit {
    let exit = Exit::from(error);
    if exit != Exit::ReaderClosed {
        console.error(&format!("cannot write standard output: {error}"));
    }
    exit
}

/// Returns the text without the numbers of errors of the system, which the words before them explain.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                plain += rest;
            }
            _ => plain.extend([" (os error ", part]),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;
    use crate::cli::args::MessageOptions;

    fn console(options: &MessageOptions) -> Console {
        let mut console = Console::new("rdrecv", options);
        console.host = "hostB".to_owned();
        console
    }

    #[test]
    fn every_line_names_program_and_host() {
        let console = console(&MessageOptions::default());
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
    fn a_peer_cannot_send_control_characters_to_the_terminal() {
        let console = console(&MessageOptions::default());
        let line = console.line(
            Level::Error,
            "gave up:\x1b[2J\r\nrdrecv: hostB: fine\u{9b}x\u{202e}y\n",
        );
        assert_eq!(
            line,
            "rdrecv: hostB: gave up:\\u{1b}[2J\\r rdrecv: hostB: fine\\u{9b}x\\u{202e}y\n"
        );
    }

    #[test]
    fn quiet_and_verbose_choose_the_messages() {
        let printed = |quiet, verbose| {
            let console = console(&MessageOptions {
                verbose,
                quiet,
                ..MessageOptions::default()
            });
            let levels = [
                Level::Error,
                Level::Warning,
                Level::Note,
                Level::Detail,
                Level::Minor,
            ];
            levels.map(|level| console.wants(level))
        };
        assert_eq!(printed(false, 0), [true, true, true, false, false]);
        assert_eq!(printed(false, 1), [true, true, true, true, false]);
        assert_eq!(printed(false, 2), [true; 5]);
        assert_eq!(printed(true, 0), [true, false, false, false, false]);
    }

    #[test]
    fn json_is_one_line() {
        let console = console(&MessageOptions::default());
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
    fn a_sentence_contains_each_cause_once() {
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
    fn a_warning_is_shown_again_after_a_pause() {
        let events = ShownEvents {
            console: Console::new("rdrecv", &MessageOptions::default()),
            last: Mutex::new(None),
        };
        let now = Instant::now();
        assert!(events.is_new("one", now));
        assert!(!events.is_new("one", now + SAME_EVENT_PAUSE / 2));
        assert!(events.is_new("one", now + SAME_EVENT_PAUSE));
        assert!(events.is_new("two", now + SAME_EVENT_PAUSE));
    }

    /// Strangers, and the holder of a key who breaks off.
    #[test]
    fn connections_that_are_no_streams_do_not_fill_the_log() {
        let options = MessageOptions {
            verbose: 1,
            ..MessageOptions::default()
        };
        let console = Console::new("rdcp", &options);
        let shown = ShownEvents {
            console: console.clone(),
            last: Mutex::new(None),
        };
        tracing::subscriber::with_default(shown, || {
            for port in 0..100 {
                tracing::debug!(target: DETAILS[0], port, "a connection that is no stream");
                tracing::debug!(target: DETAILS[0], client = "alice", port, "gets no stream");
            }
        });
        let later = Instant::now() + SAME_EVENT_PAUSE;
        let mut left_out = console.budgets.take_left_out(later);
        left_out.sort();
        let [(alice, first), (others, second)] = &left_out[..] else {
            panic!("{left_out:?}");
        };
        assert_eq!((&**alice, &**others), ("alice", OTHERS));
        assert!(*first > 50 && *second > 50, "{left_out:?}");
    }

    #[test]
    fn an_event_is_a_sentence_with_its_values() {
        struct Kept(Mutex<Vec<String>>);
        impl Subscriber for &'static Kept {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }
            fn event(&self, event: &Event<'_>) {
                let mut text = EventText::default();
                event.record(&mut text);
                self.0.lock().unwrap().push(text.text);
            }
            fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
                span::Id::from_u64(1)
            }
            fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
            fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
            fn enter(&self, _: &span::Id) {}
            fn exit(&self, _: &span::Id) {}
        }
        let kept: &'static Kept = Box::leak(Box::new(Kept(Mutex::new(Vec::new()))));
        tracing::subscriber::with_default(kept, || {
            let error = std::io::Error::from_raw_os_error(24);
            tracing::warn!(%error, "cannot accept a connection");
            tracing::debug!(address = "10.0.0.1:5", "a connection that is no stream");
        });
        assert_eq!(
            *kept.0.lock().unwrap(),
            [
                "cannot accept a connection: Too many open files (os error 24)",
                "a connection that is no stream: 10.0.0.1:5",
            ]
        );
    }
}
