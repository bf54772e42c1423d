//! What the halves of a stream and its tasks hold together: the state and the two lanes.
//!
//! The halves, the steward and the renewal each hold an [`Arc`] of it. The control task holds the state only.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::task::AtomicWaker;

use super::{path::DataPath, recv_lane::SharedRecvLane, send_lane::SharedSendLane};
use crate::transport::control::state::State;

/// The state and the two lanes of a stream over one kind of data path. The last holder frees it, with the data path and
/// its pools.
pub(crate) struct Shared<D: DataPath> {
    /// The state of the stream.
    pub(crate) state: Arc<State>,
    /// The send lane; `None` in a stream that only receives.
    pub(crate) send_lane: Option<SharedSendLane<D::Send>>,
    /// The receive lane; `None` in a stream that only sends.
    pub(crate) recv_lane: Option<SharedRecvLane<D::Receive>>,
    /// Wakes the steward when a user polls a half again.
    pub(crate) attended: AtomicWaker,
}

/// A poll of a half by its user. It is counted, and the steward woken, when this value is dropped: after the lane is
/// unlocked.
///
/// If it were counted before the lane is locked, a user who then waits for the lock would register its waker after the
/// steward has taken the half for unattended, and the steward would not come back when the user leaves.
pub(super) struct Attendance<'a> {
    polls: &'a AtomicU64,
    steward: &'a AtomicWaker,
}

impl<'a> Attendance<'a> {
    /// A poll that adds to `polls`, by which `steward` is woken.
    pub(super) fn new(polls: &'a AtomicU64, steward: &'a AtomicWaker) -> Self {
        Self { polls, steward }
    }
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.steward.wake();
    }
}
