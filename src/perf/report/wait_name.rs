//! How an end waits, in a report.

use serde::{Deserialize, Serialize};

use crate::perf::messages::WaitMode;

/// [`WaitMode`] in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WaitName {
    Adaptive,
    Event,
    Busy,
}

impl From<WaitName> for WaitMode {
    fn from(name: WaitName) -> Self {
        match name {
            WaitName::Adaptive => Self::Adaptive,
            WaitName::Event => Self::Event,
            WaitName::Busy => Self::Busy,
        }
    }
}
