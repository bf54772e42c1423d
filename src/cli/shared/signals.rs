//! The signals after which a program ends its run and reports it.

use std::{io, process};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use super::message::Console;
use crate::process::is_signal_ignored;

/// The number and name of each signal: from ^C, from `kill`, and from a terminal that was closed.
const SIGNALS: [(u8, &str); 3] = [(2, "SIGINT"), (15, "SIGTERM"), (1, "SIGHUP")];

/// The signals that a program passes on to its command, beside [`SIGNALS`].
const PASSED_ON: [(u8, &str); 3] = [(3, "SIGQUIT"), (10, "SIGUSR1"), (12, "SIGUSR2")];

/// A signal that the process received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caught {
    /// The number of the signal.
    pub(crate) number: u8,
    /// The name of the signal.
    pub(crate) name: &'static str,
}

/// The signal that ends a program with several runs: each run waits for a clone of this future.
pub(crate) type EndingCaught = Shared<BoxFuture<'static, Option<Caught>>>;

/// Returns the signal of [`watch`] for several runs.
pub(crate) fn shared(signal: oneshot::Receiver<Caught>) -> EndingCaught {
    signal.map(Result::ok).boxed().shared()
}

/// Returns a channel that receives the first signal, which a task on `runtime` waits for. From then on the end of the
/// program waits only a moment for a stderr that is not read. A second signal ends the process at once, because the
/// first may arrive while the main thread is in a read that does not return.
///
/// Signals that are ignored when the program starts stay ignored, as `nohup` and a shell's `&` require.
pub(crate) fn watch(runtime: &Handle, console: &Console) -> io::Result<oneshot::Receiver<Caught>> {
    let _context = runtime.enter();
    let mut signals = EndingSignals::catch()?;
    let (sender, receiver) = oneshot::channel();
    let console = console.clone();
    runtime.spawn(async move {
        let caught = signals.next().await;
        console.hurry();
        let _ = sender.send(caught);
        let again = signals.next().await;
        process::exit(128 + i32::from(again.number));
    });
    Ok(receiver)
}

/// The signals that end a program, each of them any number of times.
pub(crate) struct EndingSignals(Vec<(Signal, Caught)>);

impl EndingSignals {
    /// Begins to catch the signals, apart from those that are ignored. Must be called within a tokio runtime.
    pub(crate) fn catch() -> io::Result<Self> {
        Self::catch_all(SIGNALS.into_iter())
    }

    /// Begins to catch the signals that a program passes on to its command, apart from those that are ignored. Must be
    /// called within a tokio runtime.
    pub(crate) fn catch_for_command() -> io::Result<Self> {
        Self::catch_all(SIGNALS.into_iter().chain(PASSED_ON))
    }

    fn catch_all(all: impl Iterator<Item = (u8, &'static str)>) -> io::Result<Self> {
        let mut signals = Vec::new();
        for (number, name) in all {
            if !is_signal_ignored(number) {
                let kind = SignalKind::from_raw(number.into());
                signals.push((signal(kind)?, Caught { number, name }));
            }
        }
        Ok(Self(signals))
    }

    /// Waits for the next signal.
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Caught {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let waits = self.0.iter_mut().map(|(signal, caught)| {
            Box::pin(async move {
                if signal.recv().await.is_none() {
                    std::future::pending::<()>().await;
                }
                *caught
            })
        });
        futures::future::select_all(waits).await.0
    }
}
