//! The first cause: the first failure of an order, shared by all tasks that work on it.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio_util::sync::CancellationToken;

use crate::{
    Error,
    ssh::{
        edge::about_peer,
        protocol::{FaultKind, WorkFault},
    },
};

/// The first failure of an order, shared by all tasks that work on it. The task that detects a failure records it
/// here, and all other tasks end.
#[derive(Debug, Default)]
pub(crate) struct FirstCause {
    first: Mutex<Option<FirstFailure>>,
    failed: CancellationToken,
    /// Set if the next stage stopped reading the output of this one.
    pub(super) output_stopped: Flag,
    /// Set if this stage stopped reading its input before the end.
    pub(super) input_stopped: Flag,
}

/// The first failure of an order, as it is recorded.
#[derive(Debug, Clone)]
struct FirstFailure {
    /// The fault for the report; none if the command's status already explains the failure.
    fault: Option<WorkFault>,
    /// The reason that the peers on the edges receive.
    reason: String,
}

impl FirstCause {
    /// Records a fault, unless a failure is recorded already. `text` is for the report, `reason` for the peers on the
    /// edges.
    pub(super) fn fail(&self, kind: FaultKind, text: impl Into<String>, reason: impl Into<String>) {
        let text = text.into();
        let fault = Some(WorkFault { kind, text });
        let reason = reason.into();
        self.set(FirstFailure { fault, reason });
    }

    /// Records that the edge to `peer` broke, unless a failure is recorded already. `own` is the name of this work in
    /// messages to the other peers.
    pub(super) fn broken(&self, error: Error, peer: &str, own: &str) {
        let kind = match error {
            Error::PeerAborted { .. } => FaultKind::PeerAborted,
            _ => FaultKind::Edge,
        };
        let text = about_peer(error.clone(), peer).to_string();
        let reason = match error {
            // The first failure is the peer's: its reason is passed on unchanged.
            Error::PeerAborted { reason, .. } => reason,
            _ => format!("{own}: {text}"),
        };
        self.fail(kind, text, reason);
    }

    /// Records that the command did not end by itself, unless a failure is recorded already. The report has no fault
    /// then: the command's status explains the failure.
    pub(super) fn give_up(&self, reason: String) {
        self.set(FirstFailure {
            fault: None,
            reason,
        });
    }

    fn set(&self, failure: FirstFailure) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
        drop(first);
        self.failed.cancel();
    }

    /// Waits until a failure is recorded.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub(crate) async fn failed(&self) {
        self.failed.cancelled().await;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_cancelled()
    }

    pub(super) fn fault(&self) -> Option<WorkFault> {
        self.first()?.fault
    }

    /// Returns the reason that the peers on the edges receive.
    pub(crate) fn reason(&self) -> String {
        self.first().map(|first| first.reason).unwrap_or_default()
    }

    fn first(&self) -> Option<FirstFailure> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.clone()
    }
}

/// A flag that is set at most once and is never cleared.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_failure_is_kept() {
        let cause = FirstCause::default();
        assert!(!cause.has_failed());
        cause.fail(
            FaultKind::Local,
            "the disk is full",
            "2 (b): the disk is full",
        );
        cause.give_up("killed".into());
        assert!(cause.has_failed());
        assert_eq!(cause.fault().unwrap().text, "the disk is full");
        assert_eq!(cause.reason(), "2 (b): the disk is full");
    }
}
