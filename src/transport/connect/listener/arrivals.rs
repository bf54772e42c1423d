//! The streams of a listener: those that wait for the program, in the order in which they came, also as a
//! `futures::Stream`, and those that have not ended.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use futures::stream::FusedStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_util::task::TaskTracker;

use super::Listener;
use crate::{Error, transport::stream::stream::Stream};

/// A stream that waits for its program, or the reason why there is none.
pub(super) struct Arrival {
    pub(super) outcome: Result<Stream, Error>,
    /// The place among the streams that wait.
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

/// A queue from which any number of tasks take.
#[derive(Default)]
pub(super) struct ArrivalQueue {
    inner: Mutex<Inner>,
    /// Wakes one of the tasks that wait in [`next`](Self::next).
    arrived: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Arrival>,
    /// The last task that polled and got no stream.
    poller: Option<Waker>,
    has_ended: bool,
    is_end_told: bool,
}

impl Inner {
    fn take(&mut self) -> Poll<Option<Arrival>> {
        match self.waiting.pop_front() {
            None if !self.has_ended => Poll::Pending,
            arrival => Poll::Ready(arrival),
        }
    }
}

impl ArrivalQueue {
    /// Appends an arrival.
    pub(super) fn push(&self, arrival: Arrival) {
        let mut inner = self.lock();
        inner.waiting.push_back(arrival);
        let poller = inner.poller.take();
        drop(inner);
        self.arrived.notify_one();
        poller.into_iter().for_each(Waker::wake);
    }

    /// No arrival follows.
    pub(super) fn end(&self) {
        let mut inner = self.lock();
        inner.has_ended = true;
        let poller = inner.poller.take();
        drop(inner);
        self.arrived.notify_waiters();
        // For a task that has looked, and does not wait yet.
        self.arrived.notify_one();
        poller.into_iter().for_each(Waker::wake);
    }

    /// Takes the next arrival; `None` after the end.
    ///
    /// # Cancel safety
    ///
    /// Safe: an arrival that was not returned is returned by the next call.
    pub(super) async fn next(&self) -> Option<Arrival> {
        loop {
            let arrived = self.arrived.notified();
            match self.lock().take() {
                Poll::Ready(Some(arrival)) => return Some(arrival),
                Poll::Ready(None) => break,
                Poll::Pending => {}
            }
            arrived.await;
        }
        // The next of the tasks that wait learns it too.
        self.arrived.notify_one();
        None
    }

    /// Polls for the next arrival. Wakes only the task that polled last.
    pub(super) fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Arrival>> {
        let mut inner = self.lock();
        let taken = inner.take();
        if taken.is_pending() {
            inner.poller = Some(cx.waker().clone());
        }
        taken
    }

    /// Returns true once: the program has not been told of the end yet.
    pub(super) fn tell_end(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_end_told, true)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The streams that a [`Listener`] accepts, as a [`futures::Stream`]: [`Listener::incoming`].
///
/// It yields an error only if the listener itself has ended, once, and ends with it.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    has_ended: bool,
}

impl Incoming {
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener,
            has_ended: false,
        }
    }

    /// Borrows the listener.
    #[must_use]
    pub fn get_ref(&self) -> &Listener {
        &self.listener
    }

    /// Returns the listener.
    #[must_use]
    pub fn into_inner(self) -> Listener {
        self.listener
    }
}

impl futures::Stream for Incoming {
    type Item = Result<Stream, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        self.has_ended = accepted.is_err();
        Poll::Ready(Some(accepted))
    }
}

impl FusedStream for Incoming {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

/// The streams that a [`Listener`] has made and that have not ended. It outlives the listener, so that
/// a server which has stopped listening can wait for those that it still serves.
///
/// ```
/// # use rdpipe::{Key, Stream};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let builder = Stream::builder(&Key::generate()?);
/// let listener = builder.bind("127.0.0.1:0").await?;
/// let live = listener.close().await; // the port is free
/// live.ended().await; // and every stream has ended
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LiveStreams(pub(super) TaskTracker);

impl LiveStreams {
    /// Returns the number of streams that have not ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits until no stream is live. A stream is live until its last message has been exchanged with the peer, so a
    /// program can exit after this.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call continues to wait.
    pub async fn ended(&self) {
        // It may track more afterwards: closing it only says that an empty one may be reported.
        self.0.close();
        self.0.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, task::noop_waker_ref};

    use super::*;

    fn arrival(number: &'static str) -> Arrival {
        Arrival {
            outcome: Err(Error::Misuse(number)),
            _place: None,
        }
    }

    fn name(arrival: Option<Arrival>) -> String {
        let outcome = arrival.expect("an arrival").outcome;
        outcome.expect_err("no stream").to_string()
    }

    #[test]
    fn arrivals_come_in_order_to_tasks_and_polls() {
        let queue = ArrivalQueue::default();
        for number in ["1", "2", "3"] {
            queue.push(arrival(number));
        }
        assert_eq!(name(queue.next().now_or_never().unwrap()), "1");
        let cx = Context::from_waker(noop_waker_ref());
        assert!(matches!(queue.poll_next(&cx), Poll::Ready(Some(_))));
        assert_eq!(name(queue.next().now_or_never().unwrap()), "3");
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_wake_that_was_cancelled_goes_to_another_task() {
        let queue = ArrivalQueue::default();
        let mut first = Box::pin(queue.next());
        let mut second = Box::pin(queue.next());
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        queue.push(arrival("1"));
        drop(first);
        assert_eq!(name(second.await), "1");
    }

    #[tokio::test]
    async fn every_task_learns_of_the_end() {
        let queue = ArrivalQueue::default();
        let waiting = futures::future::join_all((0..4).map(|_| queue.next()));
        let (ends, ()) = tokio::join!(waiting, async { queue.end() });
        assert!(ends.iter().all(Option::is_none));
        assert!(queue.next().await.is_none());
        assert!(queue.tell_end() && !queue.tell_end());
    }
}
