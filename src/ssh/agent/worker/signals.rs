//! Signals to the worker: the first one fails the work, so that the worker cleans up and reports.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use tokio::signal::unix::{SignalKind, signal};

use super::{FirstCause, SharedExitCode};
use crate::{
    process::signals::is_ignored,
    ssh::{explain, protocol::FaultKind},
};

/// The signals that end the worker: SIGINT (^C), SIGTERM (kill, or the death of the guard) and SIGHUP (a closed
/// terminal).
const SIGNALS: [u8; 3] = [2, SIGTERM, 1];

/// The signal that the kernel sends when the guard dies: it ends the worker even if its parent ignored it.
const SIGTERM: u8 = 15;

/// Starts tasks that fail `cause` at the first signal. Returns the exit status, which such a signal sets.
///
/// SIGINT and SIGHUP stay ignored if they were ignored at the start, for the worker and for its command: `nohup` and a
/// shell's `&` ignore them, and a handler would give the command their default.
///
/// # Errors
///
/// When no handler can be installed.
pub(super) fn watch(cause: &Arc<FirstCause>) -> io::Result<SharedExitCode> {
    let exit = SharedExitCode::default();
    for number in SIGNALS {
        if number != SIGTERM && is_ignored(number) {
            continue;
        }
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
