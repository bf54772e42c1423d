//! A link whose counts stand still: no completion is reported, although the peer knows of more.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    Fault,
    transport::{
        control::data_progress::{DataProgress, Stall},
        rdma::link::COMPLETION_LIMIT,
    },
};

/// How late a completion may be: longer than the time for which [`link`](crate::transport::rdma::link) may miss one.
const COMPLETION_DELAY_LIMIT: Duration = COMPLETION_LIMIT.saturating_add(Duration::from_secs(1));

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
    /// blocked, and the completions of that time are polled within this wait. Returns true if the link is dead.
    ///
    /// # Errors
    ///
    /// The fault of a stream that cannot have a new link.
    pub(super) async fn is_dead(self, progress: &DataProgress) -> Result<bool, Fault> {
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
