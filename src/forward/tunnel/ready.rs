//! Which connections can go on: a queue that the wakers of many sockets fill and one task empties.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use futures::task::AtomicWaker;

use crate::forward::mux::frame::FlowId;

/// The connections of one direction whose sockets are ready, and the task that serves them.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    ids: Mutex<Vec<FlowId>>,
    task: AtomicWaker,
}

/// The waker of one connection.
#[derive(Debug)]
struct FlowWaker {
    id: FlowId,
    is_queued: AtomicBool,
    queue: Arc<ReadyQueue>,
}

/// The place of a connection in a [`ReadyQueue`].
#[derive(Debug)]
pub(super) struct FlowReadiness {
    flow: Arc<FlowWaker>,
    waker: Waker,
}

impl ReadyQueue {
    /// Makes the current task the one that serves the connections.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    /// Wakes the task.
    pub(super) fn wake(&self) {
        self.task.wake();
    }

    /// Returns a new connection's place.
    pub(super) fn place(self: &Arc<Self>, id: FlowId) -> FlowReadiness {
        let flow = Arc::new(FlowWaker {
            id,
            is_queued: AtomicBool::new(false),
            queue: Arc::clone(self),
        });
        let waker = Waker::from(Arc::clone(&flow));
        FlowReadiness { flow, waker }
    }

    /// Moves the connections that are ready to the end of `ready`.
    pub(super) fn drain_into(&self, ready: &mut Vec<FlowId>) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ready.append(&mut ids);
    }
}

impl FlowReadiness {
    /// Returns the context that queues the connection when its socket is ready, and forgets that it was queued.
    pub(super) fn context(&self) -> Context<'_> {
        self.flow.is_queued.store(false, Ordering::Release);
        Context::from_waker(&self.waker)
    }
}

impl Wake for FlowWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            let ids = &self.queue.ids;
            let mut ids = ids.lock().unwrap_or_else(PoisonError::into_inner);
            ids.push(self.id);
            drop(ids);
            self.queue.wake();
        }
    }
}
