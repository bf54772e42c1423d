//! The request for a new link because the counts of this one stand still.

use std::sync::{Arc, Weak};

use super::shared::RenewalShared;
use crate::{
    Fault,
    transport::control::data_progress::{Stall, StalledPath},
};

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
