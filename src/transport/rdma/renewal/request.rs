//! What asks for a new link, and what the renewer has to know of the old one.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::task::AtomicWaker;
use tokio::sync::Notify;

use crate::{
    Fault,
    transport::control::state::{Failure, State},
};

/// What both sides of a data path tell whoever renews it.
pub(crate) struct Renewal {
    state: Arc<State>,
    /// Completions of this link.
    pub(super) completions: AtomicU64,
    /// After how many of them it is replaced.
    limit: u64,
    pub(super) is_underway: AtomicBool,
    pub(super) wanted: Notify,
    /// Wakes the renewer: an operation has completed, whoever polled it.
    pub(super) progress: AtomicWaker,
    reason: Mutex<Option<RenewalReason>>,
}

/// Why a link is replaced.
pub(super) enum RenewalReason {
    /// It has been used enough.
    Used,
    /// It failed.
    Lost(io::Error),
}

impl Renewal {
    /// A link that is replaced after `limit` completions.
    pub(crate) fn new(state: Arc<State>, limit: u64) -> Self {
        Self {
            state,
            completions: AtomicU64::new(0),
            limit,
            is_underway: AtomicBool::new(false),
            wanted: Notify::new(),
            progress: AtomicWaker::new(),
            reason: Mutex::new(None),
        }
    }

    /// Counts one completion.
    pub(crate) fn count(&self) {
        if self.completions.fetch_add(1, Ordering::Relaxed) + 1 == self.limit {
            self.request(None);
        }
    }

    /// Something has completed, or failed.
    pub(crate) fn notify(&self) {
        self.progress.wake();
    }

    /// Asks for a new link: because this one failed, or has been used enough.
    pub(crate) fn request(&self, lost: Option<io::Error>) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        // The first error is the cause, and says more than that the link is old.
        match (&*reason, lost) {
            (Some(RenewalReason::Lost(_)), _) | (Some(RenewalReason::Used), None) => {}
            (_, Some(error)) => *reason = Some(RenewalReason::Lost(error)),
            (None, None) => *reason = Some(RenewalReason::Used),
        }
        self.wanted.notify_one();
    }

    /// Gives up: no new link would help.
    pub(crate) fn fail(&self, error: io::Error) {
        self.state
            .fail(Failure::Fault(Fault::Data(Arc::new(error))));
    }

    /// Whether the old pool is not to be granted any more.
    pub(crate) fn is_underway(&self) -> bool {
        self.is_underway.load(Ordering::Acquire)
    }

    /// Why a new link is wanted, if one is, once.
    pub(super) fn take_reason(&self) -> Option<RenewalReason> {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}
