//! A waker that counts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::waiting::until;

/// How often somebody was woken.
#[derive(Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    /// None so far.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What wakes this one.
    fn waker(self: &Arc<Self>) -> Waker {
        Arc::clone(self).into()
    }

    /// So far.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// What `poll` comes to at once; whoever has to wait then wakes this one.
    pub(crate) fn poll<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        poll(&mut Context::from_waker(&self.waker()))
    }

    /// What `poll` comes to, which is polled again only after it has woken this one: a wake that is
    /// lost is a hang.
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
