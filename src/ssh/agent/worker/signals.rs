//! Signals to the agent: it ends in order, and says so.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use tokio::signal::unix::{SignalKind, signal};

use super::{FirstCause, SharedExitCode};
use crate::ssh::{explain, protocol::FaultKind};

/// ^C, kill and the end of the guard, and the terminal that was closed.
const SIGNALS: [u8; 3] = [2, 15, 1];

/// Fails `cause` at the first signal. Returns where the exit status is going to be.
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
