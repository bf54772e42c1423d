//! What a run of rdsend and one of rdrecv have in common: runtimes, signals, and how it ended.

use std::{future::Future, panic, process::ExitCode, thread, time::Instant};

use anyhow::Context;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
};

use super::{
    exit::Exit,
    message::{Console, sentence},
    progress::RunProgress,
    report::Report,
    signals::{self, Caught},
};
use crate::{Error, Key, Stats, Stream, carry::CarryError, cli::args::KeySource};

/// What a run works with.
pub(crate) struct Run {
    /// Where the user is told things.
    pub(crate) console: Console,
    /// Undisturbed by the main thread's reads and writes of files: for keepalives, and for the control tasks of
    /// streams that other threads move.
    pub(crate) control_runtime: Handle,
    signal: oneshot::Receiver<Caught>,
    report: Report,
    started: Option<Instant>,
}

/// Runs a program to its end and tells the user how it went.
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
    report.exit.into()
}

fn start<F>(console: Console, program: impl FnOnce(Run) -> F) -> anyhow::Result<Report>
where
    F: Future<Output = Report> + Send + 'static,
{
    let control_runtime = control_runtime()?;
    let main = runtime()?;
    let signal = signals::watch(&control_runtime).context("cannot catch signals")?;
    let run = Run {
        console,
        control_runtime,
        signal,
        report: Report::default(),
        started: None,
    };
    // A task is woken by its own thread without a system call; what `block_on` itself waits for is not.
    let report = main.block_on(main.spawn(program(run)));
    let report = report.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()));
    // A thread that hangs in the resolver or in a file must not keep the program.
    main.shutdown_background();
    Ok(report)
}

/// A runtime of one thread: waking it costs one write to an eventfd, where a pool of workers adds
/// a futex call on both sides (measured: a third of all system calls at full speed).
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// A runtime on a thread of its own, which lives as long as the process.
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

/// The key that the user gave, if any, read and stretched.
pub(crate) fn key(source: KeySource, console: &Console) -> anyhow::Result<Option<Key>> {
    let Some(loaded) = source.load()? else {
        return Ok(None);
    };
    if let Some(warning) = &loaded.warning {
        console.warn(warning);
    }
    Ok(Some(loaded.key))
}

impl Run {
    /// Waits for `work`, or for a signal.
    ///
    /// # Errors
    ///
    /// The signal's [`Interrupted`], or what `work` fails with.
    pub(crate) async fn interruptible<T, E: Into<anyhow::Error>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            result = work => result.map_err(Into::into),
            Ok(caught) = &mut self.signal => Err(Interrupted(caught).into()),
        }
    }

    /// Notes what is known once there is a stream, and shows its progress.
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
            peer: Some(stream.peer().to_owned()),
            chunk_bytes: Some(stream.chunk_bytes()),
            depth: Some(stream.depth()),
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
        RunProgress::start(&self.console, total, terminal, moved)
    }

    /// Ends a stream that was connected: tells the peer what broke here, if something did, and
    /// waits until it has heard.
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

    /// A run that failed.
    pub(crate) fn failed(self, error: &anyhow::Error) -> Report {
        let exit = match error.downcast_ref::<Interrupted>() {
            Some(Interrupted(caught)) => Exit::Signal(caught.number),
            None => Exit::from(error),
        };
        // Like a death by SIGPIPE, this one needs no words on the side that writes to the pipe.
        let silent = exit == Exit::ReaderClosed && error.downcast_ref::<Error>().is_none();
        let error = (!silent).then(|| sentence(error));
        Report {
            error,
            exit,
            ..self.report
        }
    }
}

/// A signal ended the run.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {}", .0.name)]
pub(crate) struct Interrupted(Caught);

/// Tells the peer about a failure that only this end knows of. A reader that left its pipe early
/// is none: the peer may stop.
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

/// Names the file in which bytes were lost. The stream's own errors need no name.
pub(crate) fn explained(error: CarryError, name: &str) -> anyhow::Error {
    match error {
        CarryError::Stream(error) => error.into(),
        CarryError::Source { offset, source } => {
            anyhow::Error::from(source).context(format!("cannot read {name} at byte {offset}"))
        }
        CarryError::Sink { offset, source } => {
            anyhow::Error::from(source).context(format!("cannot write {name} at byte {offset}"))
        }
    }
}
