//! Replaces the link of a stream while the stream runs: the request for a new link, a link whose counts stand still,
//! and what the renewal has to know of the old link.
//!
//! | file | what it has |
//! |---|---|
//! | [`renewer`] | the task that makes the new link, in steps with the peer |

pub(super) mod renewer;

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::task::AtomicWaker;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::{
    Fault,
    transport::{
        control::{
            data_watch::{DataProgress, Stall, StalledPath},
            state::{Failure, State},
        },
        data::path::violation,
        rdma::{link::COMPLETION_LIMIT, nudge::Nudges},
    },
};

/// What both sides of the data path share with the task that renews the link.
pub(crate) struct RenewalShared {
    state: Arc<State>,
    /// The number of chunks that have completed on this link.
    completions: AtomicU64,
    /// The number of completions of this link, those of nudges included.
    completions_with_nudges: AtomicU64,
    /// The number of completions after which the link is replaced.
    limit: u64,
    is_underway: AtomicBool,
    requested: Notify,
    /// Wakes the renewal after a completion, whichever task polled it.
    progress: AtomicWaker,
    /// Finds completions that were missed.
    pub(in crate::transport::rdma) nudges: Nudges,
    reason: Mutex<Option<RenewalReason>>,
}

/// The reason why a link is replaced.
enum RenewalReason {
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
    async fn nudge(&self) -> Infallible {
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
    fn request_for(&self, stall: Stall) {
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
    fn take_reason(&self) -> Option<RenewalReason> {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// How late a completion may be: longer than the time for which [`link`](crate::transport::rdma::link) may miss one.
const COMPLETION_DELAY_LIMIT: Duration = COMPLETION_LIMIT.saturating_add(Duration::from_secs(1));

/// A link whose counts stand still, and the count that stood still when that was noticed.
#[derive(Clone, Copy)]
struct SilentLink {
    stall: Stall,
    count: u64,
}

impl SilentLink {
    /// A link with these counts.
    fn new(stall: Stall, progress: &DataProgress) -> Self {
        let count = count_of(stall, progress);
        Self { stall, count }
    }

    /// Waits to find out whether the link is only late: the runtime in which its completions are polled may have been
    /// blocked, and the completions of that time are polled within this wait. Returns true if the link is dead.
    ///
    /// # Errors
    ///
    /// The fault of a stream that cannot have a new link.
    async fn is_dead(self, progress: &DataProgress) -> Result<bool, Fault> {
        // A wait that took longer was blocked as well, and its timer may run before the completions are polled.
        loop {
            let began = Instant::now();
            sleep(COMPLETION_DELAY_LIMIT).await;
            if began.elapsed() < COMPLETION_DELAY_LIMIT + COMPLETION_DELAY_LIMIT / 4 {
                break;
            }
        }
        match self.stall {
            _ if count_of(self.stall, progress) != self.count => Ok(false),
            Stall::Arrivals { .. } => Ok(true),
            // The memory of a write belongs to the device until the write completes, so the frame cannot be sent again.
            Stall::Completions { .. } => Err(self.stall.into()),
        }
    }
}

fn count_of(stall: Stall, progress: &DataProgress) -> u64 {
    match stall {
        Stall::Arrivals { .. } => progress.received(),
        Stall::Completions { .. } => progress.sent(),
    }
}

/// The link of a stream, as the watch over the data path asks it about counts that stand still.
pub(crate) struct LinkStalls(Weak<RenewalShared>);

impl LinkStalls {
    /// Answers for the link that `renewal` replaces.
    pub(crate) fn new(renewal: &Arc<RenewalShared>) -> Self {
        Self(Arc::downgrade(renewal))
    }
}

impl StalledPath for LinkStalls {
    /// Leaves the decision to the renewal, which runs in the runtime in which the completions are polled.
    fn stalled(&self, stall: Stall) -> Result<(), Fault> {
        if let Some(renewal) = self.0.upgrade().filter(|renewal| !renewal.is_underway()) {
            renewal.request_for(stall);
        }
        Ok(())
    }
}
