//! The receiving half: from the receiving lane to the user's bytes.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::ReadBuf;

use super::{
    path::{DataPath, ReceivePath},
    readable::Readable,
    recv_lane::SharedRecvLane,
    shared::Shared,
};
use crate::{Error, faults};

/// The receiving half of a stream over one kind of data path.
pub(crate) struct RecvHalf<D: DataPath> {
    shared: Arc<Shared<D>>,
    /// The chunk that the reader is at.
    current: Option<Readable<<D::Receive as ReceivePath>::Slot>>,
    /// Bytes that the reader has taken.
    taken: u64,
}

impl<D: DataPath> RecvHalf<D> {
    /// The one receiving half of `shared`.
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self {
            shared,
            current: None,
            taken: 0,
        }
    }

    /// The unread rest of the chunk that the reader is at; empty at the end of the stream.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<&[u8], Error>> {
        if self.current.is_none() {
            self.current = ready!(self.poll_next(cx))?;
        }
        Poll::Ready(Ok(self.current.as_ref().map_or(&[], Readable::rest)))
    }

    /// The next chunk, or none at the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<ReadableOf<D>>, Error>> {
        let Some(recv_lane) = &self.shared.recv_lane else {
            return Poll::Ready(Ok(None));
        };
        let state = &self.shared.state;
        recv_lane.polls.fetch_add(1, Ordering::Relaxed);
        self.shared.attended.wake();
        // Registered before anything is looked at, so that nothing can change unseen in between.
        state.wait_to_receive(cx);
        if let Some(chunk) = recv_lane.lock().next(state, cx) {
            return Poll::Ready(Ok(Some(chunk)));
        }
        if state.at_end()? {
            Poll::Ready(Ok(None))
        } else {
            Poll::Pending
        }
    }

    /// The unread rest of the chunk that the reader is at, to keep; none at the end of the stream.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Error>> {
        ready!(self.poll_fill(cx))?;
        let (Some(chunk), Some(recv_lane)) = (self.current.take(), &self.shared.recv_lane) else {
            return Poll::Ready(Ok(None));
        };
        let bytes = recv_lane.lock().lend(&self.shared.state, chunk);
        self.taken += bytes.len() as u64;
        Poll::Ready(Ok(Some(bytes)))
    }

    /// The reader has taken `count` bytes of what [`poll_fill`](Self::poll_fill) gave it.
    pub(crate) fn take(&mut self, count: usize) {
        let Some(current) = &mut self.current else {
            return;
        };
        self.taken += count as u64;
        if !current.take(count) {
            return;
        }
        let Some(done) = self.current.take() else {
            return;
        };
        if let Some(recv_lane) = &self.shared.recv_lane {
            recv_lane.lock().release(&self.shared.state, done);
        }
    }

    /// Copies into `buf` what is there of the chunk that the reader is at.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        if buf.remaining() > 0 {
            let rest = ready!(self.poll_fill(cx))?;
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            self.take(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Tells the peer that the reader wants no more, and is content.
    pub(crate) fn stop(&self) {
        self.shared.state.stop(self.taken);
    }

    /// Tells the peer that the sink has taken every byte.
    pub(crate) fn confirm(&self) -> Result<(), Error> {
        faults::point("before-confirmation-sent");
        self.shared.state.confirm()
    }
}

type ReadableOf<D> = Readable<<<D as DataPath>::Receive as ReceivePath>::Slot>;

impl<D: DataPath> Drop for RecvHalf<D> {
    fn drop(&mut self) {
        let queued = |recv_lane: &SharedRecvLane<D::Receive>| recv_lane.lock().has_ready();
        let unread = self.current.is_some() || self.shared.recv_lane.as_ref().is_some_and(queued);
        self.shared.state.release_half(false, unread);
    }
}
