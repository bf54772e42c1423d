//! A link whose counts stand still: no completion is reported, although the peer knows of more.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::request::{Renewal, RenewalReason};
use crate::{
    Fault,
    transport::{
        control::data_progress::{DataProgress, Stall, StalledPath},
        rdma::link::COMPLETION_LIMIT,
    },
};

/// How late a completion may be: longer than the time for which [`link`](crate::transport::rdma::link) may miss one.
const LATE: Duration = COMPLETION_LIMIT.saturating_add(Duration::from_secs(1));

/// The link of a stream, as the watch over the data path asks it about counts that stand still.
pub(crate) struct LinkStalls(Weak<Renewal>);

impl LinkStalls {
    /// Answers for the link that `renewal` replaces.
    pub(crate) fn new(renewal: &Arc<Renewal>) -> Self {
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

/// A link whose counts stand still, and the count that stood still when that was noticed.
#[derive(Clone, Copy)]
pub(super) struct SilentLink {
    pub(super) stall: Stall,
    count: u64,
}

impl SilentLink {
    /// A link with these counts.
    pub(super) fn new(stall: Stall, progress: &DataProgress) -> Self {
        let count = count_of(stall, progress);
        Self { stall, count }
    }

    /// Waits to find out whether the link is only late: the runtime in which its completions are polled may have been
    /// blocked, and the completions of that time are polled within this wait. Returns the reason for a new link, or `None`
    /// if this one works.
    pub(super) async fn confirm(
        self,
        progress: &DataProgress,
    ) -> Result<Option<RenewalReason>, Fault> {
        // A wait that took longer was blocked as well, and its timer may run before the completions are polled.
        loop {
            let began = Instant::now();
            sleep(LATE).await;
            if began.elapsed() < LATE + LATE / 4 {
                break;
            }
        }
        match self.stall {
            _ if count_of(self.stall, progress) != self.count => Ok(None),
            Stall::Arrivals { .. } => Ok(Some(RenewalReason::Silent(self))),
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
