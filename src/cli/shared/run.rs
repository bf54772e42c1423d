//! A run of rdsend, rdrecv, or rdcat with a ticket: runtimes, signals, the report at the end, and the exit codes.

use std::{future::Future, io, panic, process::ExitCode, thread, time::Instant};

use anyhow::Context;
use serde::{Serialize, Serializer};
use tokio::{
    runtime::{Handle, Runtime},
    sync::oneshot,
};

use super::{
    message::{Console, sentence},
    progress::RunProgress,
    report::{Report, amount},
    signals::{self, Caught},
};
use crate::{
    Cipher, Error, Key, Stats, Stream,
    carry::CarryError,
    cli::args::KeySource,
    key::{KeyError, SHORT_KEY},
    reach::ticket::NoListener,
    threads,
};

/// A run of a program, with its runtimes and its report.
pub(crate) struct Run {
    /// The console for messages to the user.
    pub(crate) console: Console,
    /// The runtime of keepalives, and of the control tasks of streams whose bytes other threads move. No read or write
    /// of a file blocks it.
    pub(crate) control_runtime: Handle,
    /// What a failure leaves of the output, in words that follow the reason.
    pub(crate) left: String,
    signal: oneshot::Receiver<Caught>,
    report: Report,
    started: Option<Instant>,
}

/// Runs a program to its end, prints how the run went, and returns the exit code. `hidden` is the result of
/// overwriting the key in arguments and environment.
pub(crate) fn main<F>(
    console: &Console,
    hidden: std::io::Result<()>,
    program: impl FnOnce(Run) -> F,
) -> ExitCode
where
    F: Future<Output = Report> + Send + 'static,
{
    if let Err(error) = hidden {
        console.warn(&format!("cannot hide the key from ps: {error}"));
    }
    let report = start(console.clone(), program);
    let report = report.unwrap_or_else(|error| Report::failed(&error));
    report.print(console);
    console.finish(report.exit).into()
}

fn start<F>(console: Console, program: impl FnOnce(Run) -> F) -> anyhow::Result<Report>
where
    F: Future<Output = Report> + Send + 'static,
{
    let control_runtime = control_runtime()?;
    let main = runtime()?;
    let signal = signals::watch(&control_runtime, &console).context("cannot catch signals")?;
    let run = Run {
        console,
        control_runtime,
        left: String::new(),
        signal,
        report: Report::default(),
        started: None,
    };
    // Waking a task on its own thread needs no system call; waking the future that `block_on` polls does.
    let report = main.block_on(main.spawn(program(run)));
    let report = report.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()));
    // The program must exit even if a thread hangs in the resolver or in a file.
    main.shutdown_background();
    Ok(report)
}

/// Returns a runtime of one thread.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    threads::runtime().context("cannot start the runtime")
}

/// Starts a thread with a runtime, which runs as long as the process, and returns its handle.
pub(crate) fn control_runtime() -> anyhow::Result<Handle> {
    let runtime = runtime()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(run)
        .context("cannot start a thread")?;
    Ok(handle)
}

/// Reads and stretches the key that the user gave, and prints its warning. Returns `None` if the user gave no key.
pub(crate) fn key(source: KeySource, console: &Console) -> anyhow::Result<Option<Key>> {
    let Some(loaded) = source.load()? else {
        return Ok(None);
    };
    if let Some(warning) = &loaded.warning {
        console.warn(warning);
    }
    if loaded.key.is_short() {
        console.warn(&format!(
            "{SHORT_KEY}; leave the key out, so that rdrecv makes one, or take one from `head -c 16 /dev/urandom | base64`"
        ));
    }
    Ok(Some(loaded.key))
}

impl Run {
    /// Waits for `work`, or for a signal.
    /// Fails with [`Interrupted`] after a signal, or the error of `work`.
    pub(crate) async fn interruptible<T, E: Into<anyhow::Error>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            result = work => result.map_err(Into::into),
            Ok(caught) = &mut self.signal => Err(Interrupted(caught).into()),
        }
    }

    /// Starts the report of a stream that has been connected, and shows a progress bar where it does not disturb.
    pub(crate) fn connected(
        &mut self,
        stream: &Stream,
        total: Option<u64>,
        terminal: bool,
    ) -> Option<RunProgress> {
        self.started = Some(Instant::now());
        self.report = Report {
            transport: Some(stream.transport().to_string()),
            transport_reason: Some(stream.transport_reason().to_owned()),
            cipher: stream.cipher().as_ref().map(Cipher::to_string),
            peer: Some(stream.peer().to_owned()),
            chunk_bytes: Some(stream.chunk_bytes()),
            depth: Some(stream.depth()),
            rails: Some(stream.rails()),
            smaller_pool_reason: stream.smaller_pool_reason().map(str::to_owned),
            ..Report::default()
        };
        if stream.is_fallback() {
            let reason = stream.transport_reason();
            self.console
                .note(&format!("the data goes over TCP: {reason}"));
        }
        let watch = stream.watch();
        let moved = move || {
            let Stats {
                bytes_sent,
                bytes_received,
                ..
            } = watch.stats();
            bytes_sent + bytes_received
        };
        RunProgress::start(&self.console, terminal, move || (moved(), total))
    }

    /// Ends a stream that was connected: sends the peer the error of this end, if there is one, closes the stream, and
    /// returns the report.
    pub(crate) async fn end(mut self, mut stream: Stream, result: anyhow::Result<()>) -> Report {
        if let Err(error) = &result {
            tell_peer(&mut stream, error);
        }
        let stats = stream.stats();
        self.report.bytes = stats.bytes_sent + stats.bytes_received;
        self.report.seconds = self
            .started
            .map_or(0.0, |started| started.elapsed().as_secs_f64());
        stream.close().await;
        match result {
            Ok(()) => self.report,
            Err(error) => self.failed(&error),
        }
    }

    pub(crate) fn failed(self, error: &anyhow::Error) -> Report {
        let exit = match error.downcast_ref::<Interrupted>() {
            Some(Interrupted(caught)) => Exit::Signal(caught.number),
            None => Exit::from(error),
        };
        // As with SIGPIPE, the program that writes to a closed pipe prints no message.
        let silent = exit == Exit::ReaderClosed && error.downcast_ref::<Error>().is_none();
        let error = (!silent).then(|| match self.report.bytes {
            bytes if bytes > 0 && matches!(exit, Exit::Signal(_)) => {
                format!("{error} after {}{}", amount(bytes), self.left)
            }
            _ => sentence(error) + &self.left,
        });
        Report {
            error,
            exit,
            ..self.report
        }
    }
}

/// The error of a run that a signal ended.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {}", .0.name)]
pub(crate) struct Interrupted(Caught);

/// Sends the peer an error that happened on this end only. If the reader of this end's output has left, sends STOP
/// instead, which is not a failure.
fn tell_peer(stream: &mut Stream, error: &anyhow::Error) {
    let from_stream = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<Error>().is_some()
            || cause
                .downcast_ref()
                .is_some_and(|error| Error::from_io(error).is_some())
    };
    if error.chain().any(from_stream) {
        return;
    }
    if Exit::from(error) == Exit::ReaderClosed {
        stream.stop();
    } else {
        stream.abort(&sentence(error));
    }
}

/// Adds the name of the file and the byte to an error of reading or writing. Errors of the stream stay unchanged.
pub(crate) fn explained(error: CarryError, name: &str) -> anyhow::Error {
    match error {
        CarryError::Stream(error) => error.into(),
        CarryError::Buffer(error) => error.into(),
        CarryError::Source { offset, source } => {
            anyhow::Error::from(source).context(format!("cannot read {name} at byte {offset}"))
        }
        CarryError::Sink { offset, source } => {
            anyhow::Error::from(source).context(format!("cannot write {name} at byte {offset}"))
        }
    }
}

/// How a run ended. [`EXIT_CODES`](crate::cli::args::EXIT_CODES) explains each value to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Exit {
    /// All bytes were delivered, and the other end confirmed them.
    #[default]
    Ok,
    /// This end failed to read its input or to write its output.
    Local,
    /// The command line, or the key that it names, cannot be used.
    Usage,
    /// The other end reported a failure.
    Remote,
    /// All bytes were sent, but the connection broke before the other end confirmed them.
    Unconfirmed,
    Command(u8),
    Signal(u8),
    /// The reader of the output went away. The code is the one that a shell shows for a program that SIGPIPE killed.
    ReaderClosed,
    /// No connection was possible, the keys differ, or the transport failed.
    Connection,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Local => 1,
            Self::Usage => 2,
            Self::Remote => 3,
            Self::Unconfirmed => 4,
            Self::Command(status) => status,
            Self::Signal(number) => number.saturating_add(128),
            Self::ReaderClosed => 141,
            Self::Connection => 255,
        }
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match error {
            Error::Resolve { .. }
            | Error::Connect { .. }
            | Error::Listen { .. }
            | Error::Device { .. }
            | Error::Handshake { .. }
            | Error::Send { .. }
            | Error::Receive { .. } => Self::Connection,
            Error::Unconfirmed { .. } => Self::Unconfirmed,
            Error::PeerAborted { .. } => Self::Remote,
            Error::Stopped { .. } => Self::ReaderClosed,
            Error::Aborted { .. } | Error::Misuse(_) => Self::Local,
        }
    }
}

impl From<&io::Error> for Exit {
    /// Converts the stream's error inside `error`. An `io::Error` without one is local: errors of sockets are always
    /// wrapped in an [`Error`].
    fn from(error: &io::Error) -> Self {
        match Error::from_io(error) {
            Some(inner) => inner.into(),
            None if error.kind() == io::ErrorKind::BrokenPipe => Self::ReaderClosed,
            None => Self::Local,
        }
    }
}

impl From<&anyhow::Error> for Exit {
    /// Converts the outermost cause whose type has an exit code.
    fn from(error: &anyhow::Error) -> Self {
        let known = |cause: &(dyn std::error::Error + 'static)| {
            let stream = cause.downcast_ref::<Error>().map(Self::from);
            let key = || cause.downcast_ref::<KeyError>().map(|_| Self::Usage);
            let no_listener = || cause.is::<NoListener>().then_some(Self::Connection);
            let local = || cause.downcast_ref::<io::Error>().map(Self::from);
            stream.or_else(key).or_else(no_listener).or_else(local)
        };
        error.chain().find_map(known).unwrap_or(Self::Local)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl Serialize for Exit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.code())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;
    use crate::error::Fault;

    fn unconfirmed() -> Error {
        Error::Unconfirmed {
            peer: "b".into(),
            bytes: 3,
            fault: Fault::Protocol("x"),
        }
    }

    #[test]
    fn an_error_of_a_stream_is_found_under_context() {
        let bare = Error::PeerAborted {
            peer: "b".into(),
            offset: 0,
            reason: "full".into(),
        };
        let bare: Result<(), _> = Err(bare);
        let error = bare.context("while copying").unwrap_err();
        assert_eq!(Exit::from(&error), Exit::Remote);

        let in_io: Result<(), io::Error> = Err(unconfirmed().into());
        let error = in_io
            .context("while copying")
            .context("rdsend")
            .unwrap_err();
        assert_eq!(Exit::from(&error), Exit::Unconfirmed);
    }

    #[test]
    fn errors_of_this_end_have_different_codes() {
        let of = |error: anyhow::Error| Exit::from(&error);
        assert_eq!(
            of(io::Error::from(io::ErrorKind::StorageFull).into()),
            Exit::Local
        );
        assert_eq!(
            of(io::Error::from(io::ErrorKind::BrokenPipe).into()),
            Exit::ReaderClosed
        );
        assert_eq!(of(KeyError::Empty.into()), Exit::Usage);
        assert_eq!(
            of(crate::Key::from_file("/nonexistent").unwrap_err().into()),
            Exit::Usage
        );
        assert_eq!(of(anyhow::anyhow!("anything else")), Exit::Local);
        let stopped = Error::Stopped {
            peer: "b".into(),
            offset: 9,
        };
        assert_eq!(of(stopped.into()), Exit::ReaderClosed);
    }
}
