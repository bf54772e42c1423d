//! Why work is given up: the first thing that went wrong, for all tasks that work on it.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio_util::sync::CancellationToken;

use crate::ssh::protocol::{FaultKind, WorkFault};

/// The first thing that went wrong, shared by all tasks of an order. The task that sees something break records
/// it here, and all others end.
#[derive(Debug, Default)]
pub(super) struct FirstCause {
    first: Mutex<Option<FirstFailure>>,
    failed: CancellationToken,
    /// The next stage wanted no more.
    pub(super) output_stopped: Flag,
    /// This stage wanted no more.
    pub(super) input_stopped: Flag,
}

/// The first thing that went wrong.
#[derive(Debug, Clone)]
struct FirstFailure {
    /// None where the command's status says it all.
    fault: Option<WorkFault>,
    /// What the peers are told.
    reason: String,
}

impl FirstCause {
    /// Gives up because of a fault. `reason` is what the peers on the edges are told.
    pub(super) fn fail(&self, kind: FaultKind, text: impl Into<String>, reason: impl Into<String>) {
        let text = text.into();
        let fault = Some(WorkFault { kind, text });
        let reason = reason.into();
        self.set(FirstFailure { fault, reason });
    }

    /// Gives up because of how the command ended.
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

    /// Completes when something went wrong.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub(super) async fn failed(&self) {
        self.failed.cancelled().await;
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_cancelled()
    }

    pub(super) fn fault(&self) -> Option<WorkFault> {
        self.first()?.fault
    }

    /// What the peers are told.
    pub(super) fn reason(&self) -> String {
        self.first().map(|first| first.reason).unwrap_or_default()
    }

    fn first(&self) -> Option<FirstFailure> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.clone()
    }
}

/// Something that has happened, or not yet.
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
    fn the_first_cause_is_kept() {
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
