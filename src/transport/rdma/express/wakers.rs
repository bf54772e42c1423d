//! The tasks that wait for the lane: one for each side of the data path.

use std::{
    sync::Arc,
    task::{Context, Wake, Waker},
};

use futures::task::AtomicWaker;

/// The side of the data path that uses the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The sending side, which waits for reports of the peer.
    Send,
    /// The receiving side, which waits for frames.
    Receive,
}

/// The waker of each side. As a waker itself it wakes both, because an event does not identify the side.
#[derive(Default)]
pub(super) struct Wakers {
    send: AtomicWaker,
    receive: AtomicWaker,
}

impl Wakers {
    /// Registers the task that waits for `side`.
    pub(super) fn register(&self, side: Side, cx: &Context<'_>) {
        self.of(side).register(cx.waker());
    }

    /// Wakes the task that waits for `side`.
    pub(super) fn wake(&self, side: Side) {
        self.of(side).wake();
    }

    fn of(&self, side: Side) -> &AtomicWaker {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.receive,
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.send.wake();
        self.receive.wake();
    }
}

/// Returns a waker that wakes both sides.
pub(super) fn waker_of_both(wakers: &Arc<Wakers>) -> Waker {
    Waker::from(Arc::clone(wakers))
}
