//! The receiving half: reads, STOP and the confirmation, as calls of the receive lane and the state.
//!
//! A half belongs to one user. Each read moves the data of the lane, so that a chunk is read from the data path,
//! verified and handed out while it is in the processor's cache; while the user does not read, the steward verifies.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::ReadBuf;

use super::{
    path::{DataPath, ReceivePath},
    recv_lane::SharedRecvLane,
    shared::{Attendance, Shared},
    slots::Readable,
};
use crate::{Error, faults};

/// The receiving half of a stream over one kind of data path.
pub(crate) struct RecvHalf<D: DataPath> {
    shared: Arc<Shared<D>>,
    /// The chunk that the user is reading.
    current: Option<Readable<<D::Receive as ReceivePath>::Slot>>,
    /// The number of bytes that the user has taken.
    taken: u64,
}

impl<D: DataPath> RecvHalf<D> {
    /// Returns the one receiving half of `shared`.
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self {
            shared,
            current: None,
            taken: 0,
        }
    }

    /// Grants the peer all slots, at the start of the stream.
    pub(crate) fn grant_all(&self) {
        if let Some(recv_lane) = &self.shared.recv_lane {
            recv_lane.grant_all(&self.shared.state);
        }
    }

    /// Returns the unread rest of the current chunk; empty at the end of the stream.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<&[u8], Error>> {
        if self.current.is_none() {
            self.current = ready!(self.poll_next(cx))?;
        }
        Poll::Ready(Ok(self.current.as_ref().map_or(&[], Readable::rest)))
    }

    /// Takes the next chunk; `None` at the end of the stream.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<ReadableOf<D>>, Error>> {
        let Some(recv_lane) = &self.shared.recv_lane else {
            return Poll::Ready(Ok(None));
        };
        let state = &self.shared.state;
        let _attended = Attendance::new(&recv_lane.polls, &self.shared.attended);
        // The waker is registered before the state is checked, so that no change is missed.
        state.wait_to_receive(cx);
        recv_lane.lock().poll_next(state, cx)
    }

    /// Takes the unread rest of the current chunk, to keep; `None` at the end of the stream.
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

    /// Consumes `count` bytes of what [`poll_fill`](Self::poll_fill) returned.
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

    /// Copies the rest of the current chunk into `buf`, as far as there is room.
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

    /// Sends STOP: the user needs no more bytes, and this is no failure.
    pub(crate) fn stop(&self) {
        self.shared.state.stop(self.taken);
    }

    /// Confirms to the peer that the sink has taken every byte.
    pub(crate) fn confirm(&self) -> Result<(), Error> {
        faults::point("before-confirmation-sent");
        self.shared.state.confirm()
    }
}

type ReadableOf<D> = Readable<<<D as DataPath>::Receive as ReceivePath>::Slot>;

impl<D: DataPath> Drop for RecvHalf<D> {
    fn drop(&mut self) {
        // The lane stays locked, so that the steward adds no chunk to those that were left unread.
        let lane = self.shared.recv_lane.as_ref().map(SharedRecvLane::lock);
        let is_queued = lane.as_ref().is_some_and(|lane| lane.has_ready());
        let unread = self.current.is_some() || is_queued;
        self.shared.state.release_receiver(self.taken, unread);
    }
}
