//! Posted work requests, as futures of async-rdma: a work request is posted by the first poll of its future.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::mpsc,
    task::{Context, Poll, Waker, ready},
    thread,
};

use tokio::sync::oneshot;

/// A posted work request. Work requests are posted in the order in which they are made.
pub(crate) struct WorkRequest<T>(RequestState<T>);

/// A future of async-rdma, which completes with its work request.
type Operation<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum RequestState<T> {
    /// The first poll found the request complete.
    Done(Option<T>),
    /// The request is posted, and its future is polled here.
    Here(Operation<T>),
    /// The request is in the queue of the thread that posts it.
    Elsewhere(oneshot::Receiver<RequestState<T>>),
}

impl<T> RequestState<T> {
    /// Posts a work request by the first poll of its future.
    fn begin(mut operation: Operation<T>) -> Self {
        let mut cx = Context::from_waker(Waker::noop());
        match operation.as_mut().poll(&mut cx) {
            Poll::Ready(output) => Self::Done(Some(output)),
            Poll::Pending => Self::Here(operation),
        }
    }
}

impl<T> WorkRequest<T> {
    /// Posts the work request of `operation`.
    pub(super) fn post(operation: impl Future<Output = T> + Send + 'static) -> Self {
        Self(RequestState::begin(Box::pin(operation)))
    }

    /// A work request that has completed.
    pub(crate) fn done(output: T) -> Self {
        Self(RequestState::Done(Some(output)))
    }

    /// Waits for the completion.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        if let RequestState::Elsewhere(posted) = &mut self.0 {
            // The thread ends only with the link, so without an answer this link is being destroyed.
            let progress = ready!(Pin::new(posted).poll(cx));
            self.0 = progress.unwrap_or(RequestState::Done(None));
        }
        match &mut self.0 {
            RequestState::Done(output) => output.take().map_or(Poll::Pending, Poll::Ready),
            RequestState::Here(operation) => operation.as_mut().poll(cx),
            RequestState::Elsewhere(_) => Poll::Pending,
        }
    }
}

/// A thread that posts work requests in the order of a queue. It ends with the last owner of the queue.
#[derive(Clone)]
pub(super) struct PostingThread(mpsc::Sender<PostRequest>);

/// Posts a work request, and returns its future to the one who waits for it.
type PostRequest = Box<dyn FnOnce() + Send>;

impl PostingThread {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub(super) fn start() -> io::Result<Self> {
        let (queue, requests) = mpsc::channel::<PostRequest>();
        let post = move || requests.into_iter().for_each(|request| request());
        thread::Builder::new()
            .name("poster".to_owned())
            .spawn(post)?;
        Ok(Self(queue))
    }

    /// Queues a work request.
    pub(super) fn post<T: Send + 'static>(
        &self,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> WorkRequest<T> {
        let (back, returned) = oneshot::channel();
        let operation: Operation<T> = Box::pin(operation);
        let request = move || {
            // The stream of a closed channel is gone.
            if !back.is_closed() {
                let _ = back.send(RequestState::begin(operation));
            }
        };
        // The thread runs as long as this queue has an owner.
        let _ = self.0.send(Box::new(request));
        WorkRequest(RequestState::Elsewhere(returned))
    }
}
