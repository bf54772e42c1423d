//! What the halves of a stream, its control task and its steward hold in common.

use std::sync::Arc;

use futures::task::AtomicWaker;

use super::{path::DataPath, recv_lane::SharedRecvLane, send_lane::SharedSendLane};
use crate::transport::control::state::State;

/// See the module. Freed, with the data path and its pools, when the last holder lets go.
pub(crate) struct Shared<D: DataPath> {
    /// Everything but the data path.
    pub(crate) state: Arc<State>,
    /// Absent in a stream that only receives.
    pub(crate) send_lane: Option<SharedSendLane<D::Send>>,
    /// Absent in a stream that only sends.
    pub(crate) recv_lane: Option<SharedRecvLane<D::Receive>>,
    /// Wakes the steward out of driving: the user has come back.
    pub(crate) attended: AtomicWaker,
}
