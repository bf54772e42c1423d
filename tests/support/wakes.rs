//! A waker that counts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::waiting::until;

/// The number of times that a waker was woken.
#[derive(Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    /// Returns a counter at zero.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns a waker whose wakes this counter counts.
    fn waker(self: &Arc<Self>) -> Waker {
        Arc::clone(self).into()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Calls `poll` once with a waker of this counter, and returns the result.
    pub(crate) fn poll<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        poll(&mut Context::from_waker(&self.waker()))
    }

    /// Calls `poll` until it is ready, each time only after a wake: a lost wake is a hang.
    pub(crate) async fn drive<T>(
        self: &Arc<Self>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> T {
        loop {
            let before = self.count();
            if let Poll::Ready(outcome) = self.poll(&mut poll) {
                return outcome;
            }
            until(|| self.count() > before).await;
        }
    }
}
