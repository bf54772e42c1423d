//! Signals to the worker: the first one fails the work, so that the worker cleans up and reports.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use tokio::signal::unix::{SignalKind, signal};

use super::{FirstCause, SharedExitCode};
use crate::ssh::{explain, protocol::FaultKind};

/// The signals that end the worker: SIGINT (^C), SIGTERM (kill, or the death of the guard) and SIGHUP (a closed
/// terminal).
const SIGNALS: [u8; 3] = [2, 15, 1];

/// Starts tasks that fail `cause` at the first signal. Returns the exit status, which such a signal sets.
///
/// # Errors
///
/// When no handler can be installed.
pub(super) fn watch(cause: &Arc<FirstCause>) -> io::Result<SharedExitCode> {
    let exit = SharedExitCode::default();
    for number in SIGNALS {
        let mut signals = signal(SignalKind::from_raw(number.into()))?;
        let (cause, exit) = (Arc::clone(cause), Arc::clone(&exit));
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                exit.store(128 + number, Ordering::Relaxed);
                let text = format!("the agent was ended by {}", explain::signal(number));
                cause.fail(FaultKind::Local, text.clone(), text);
            }
        });
    }
    Ok(exit)
}
