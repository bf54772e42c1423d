//! The request for a new link, and what the renewal has to know of the old link.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::task::AtomicWaker;
use tokio::sync::Notify;

use super::silent_link::SilentLink;
use crate::{
    Fault,
    transport::{
        control::{
            data_progress::{DataProgress, Stall},
            state::{Failure, State},
        },
        data::path::violation,
        rdma::nudge::Nudges,
    },
};

/// What both sides of the data path share with the task that renews the link.
pub(crate) struct RenewalShared {
    state: Arc<State>,
    /// The number of chunks that have completed on this link.
    pub(super) completions: AtomicU64,
    /// The number of completions of this link, those of nudges included.
    pub(super) completions_with_nudges: AtomicU64,
    /// The number of completions after which the link is replaced.
    limit: u64,
    pub(super) is_underway: AtomicBool,
    pub(super) requested: Notify,
    /// Wakes the renewal after a completion, whichever task polled it.
    pub(super) progress: AtomicWaker,
    /// Finds completions that were missed.
    pub(in crate::transport::rdma) nudges: Nudges,
    reason: Mutex<Option<RenewalReason>>,
}

/// The reason why a link is replaced.
pub(super) enum RenewalReason {
    /// The link has reached its limit of completions.
    Used,
    /// The link failed.
    Lost(io::Error),
    /// The counts of the link stand still.
    Silent(SilentLink),
}

impl RenewalShared {
    /// Requests a new link after `limit` completions.
    pub(crate) fn new(state: Arc<State>, limit: u64) -> Self {
        Self {
            state,
            completions: AtomicU64::new(0),
            completions_with_nudges: AtomicU64::new(0),
            limit,
            is_underway: AtomicBool::new(false),
            requested: Notify::new(),
            progress: AtomicWaker::new(),
            nudges: Nudges::default(),
            reason: Mutex::new(None),
        }
    }

    /// Counts the completion of a chunk.
    pub(crate) fn count(&self) {
        self.completions.fetch_add(1, Ordering::Relaxed);
        self.nudges.count();
        self.count_used();
    }

    fn count_used(&self) {
        if self.completions_with_nudges.fetch_add(1, Ordering::Relaxed) + 1 == self.limit {
            self.request(None);
        }
    }

    /// Nudges the link whenever its completions pause.
    pub(super) async fn nudge(&self) -> Infallible {
        let posted = |result| match result {
            Ok(()) => self.count_used(),
            Err(_) if self.is_underway() => {}
            Err(error) => self.request(Some(error)),
        };
        let found = |completions| self.state.count_late_completions(completions);
        self.nudges.run(posted, found).await
    }

    /// Returns the counts of the data path, for its two sides to store.
    pub(crate) fn data(&self) -> &DataProgress {
        &self.state.data
    }

    /// Wakes the renewal: a work request has completed or failed.
    pub(crate) fn notify(&self) {
        self.progress.wake();
    }

    /// Requests a new link, because this one was lost or has reached its limit.
    pub(crate) fn request(&self, lost: Option<io::Error>) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        // The first error is the cause, and tells more than the limit.
        match (&*reason, lost) {
            (Some(RenewalReason::Lost(_)), _) | (Some(_), None) => {}
            (_, Some(error)) => *reason = Some(RenewalReason::Lost(error)),
            (None, None) => *reason = Some(RenewalReason::Used),
        }
        self.requested.notify_one();
    }

    /// Handles a failure of the express lane: a broken rule ends the stream, and any other failure requests a new link.
    pub(crate) fn note_express_result(&self, result: io::Result<()>) {
        let Err(error) = result else { return };
        match violation(&error) {
            Some(rule) => self.state.fail(Failure::Fault(Fault::Corrupt(rule))),
            None if self.is_underway() => {}
            None => self.request(Some(error)),
        }
    }

    /// Requests a new link, because the counts of this one stand still.
    pub(super) fn request_for(&self, stall: Stall) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if let None | Some(RenewalReason::Used) = *reason {
            *reason = Some(RenewalReason::Silent(SilentLink::new(stall, self.data())));
            self.requested.notify_one();
        }
    }

    /// Fails the stream: a new link would not help.
    pub(crate) fn fail(&self, error: io::Error) {
        self.state
            .fail(Failure::Fault(Fault::Data(Arc::new(error))));
    }

    /// Returns true while bytes may arrive.
    pub(crate) fn receives(&self) -> bool {
        self.state.receives()
    }

    /// Returns true while the link is being replaced, and slots must not be granted.
    pub(crate) fn is_underway(&self) -> bool {
        self.is_underway.load(Ordering::Acquire)
    }

    /// Takes the reason for a new link, if one is requested.
    pub(super) fn take_reason(&self) -> Option<RenewalReason> {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}
