//! The sending half: from the user's bytes to posted chunks.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use super::{
    path::{DataPath, SendPath, Slot},
    shared::Shared,
    state::State,
    wire::{Chain, HEADER_BYTES},
};
use crate::{Error, Fault, faults, pump::FillSlots};

/// What the sending half and the steward drive: the chunk being filled and those in flight.
pub(crate) struct Sender<P: SendPath> {
    lane: Mutex<Lane<P>>,
    /// Counts the user's polls, so that the steward sees whether somebody drives.
    pub(crate) polls: AtomicU64,
}

struct Lane<P: SendPath> {
    path: P,
    chain: Chain,
    filling: Option<Filling<P::Slot>>,
    broken: bool,
}

/// A slot that the user's bytes go into.
struct Filling<S> {
    slot: S,
    filled: usize,
}

impl<S: Slot> Filling<S> {
    fn room(&mut self) -> &mut [u8] {
        &mut self.slot.bytes_mut()[HEADER_BYTES + self.filled..]
    }

    fn is_full(&self) -> bool {
        HEADER_BYTES + self.filled == self.slot.bytes().len()
    }
}

impl<P: SendPath> Sender<P> {
    /// A sender whose first chunk is chained to `seed`.
    pub(crate) fn new(path: P, seed: u64) -> Self {
        let lane = Lane {
            path,
            chain: Chain::new(seed),
            filling: None,
            broken: false,
        };
        Self {
            lane: Mutex::new(lane),
            polls: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lane<P>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on without the user, and wakes it when something has moved.
    pub(crate) fn drive_unattended(&self, state: &State, cx: &mut Context<'_>) {
        let mut lane = self.lock();
        let before = (lane.path.in_flight(), lane.chain.offset());
        let _ = lane.poll_posted(state, cx, false);
        if before != (lane.path.in_flight(), lane.chain.offset()) {
            state.wake_sender();
        }
    }
}

impl<P: SendPath> Lane<P> {
    /// Completes what is in flight and posts what may be posted: a full chunk always, a partial
    /// one when nothing is in flight (so that a request never waits for a flush) or when `all`
    /// must go. Ready when nothing is left, neither to post (of what may be) nor in flight.
    fn poll_posted(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
        all: bool,
    ) -> Poll<Result<(), Error>> {
        loop {
            if self.broken {
                return Poll::Pending;
            }
            let progress = match self.path.poll_complete(cx) {
                Poll::Ready(Err(error)) => {
                    self.broken = true;
                    state.suspect(Fault::Data(Arc::new(error)));
                    continue;
                }
                Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            };
            let idle = self.path.in_flight() == 0;
            let due = |f: &mut Filling<_>| f.is_full() || (f.filled > 0 && (all || idle));
            if !self.filling.as_mut().is_some_and(due) {
                return progress;
            }
            let Some(target) = state.take_credit() else {
                return Poll::Pending;
            };
            self.post(state, target);
        }
    }

    fn post(&mut self, state: &State, target: u32) {
        let Some(Filling { mut slot, filled }) = self.filling.take() else {
            return;
        };
        let header = self.chain.seal(target, slot.payload(filled));
        slot.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode());
        self.path.post(slot, header.frame_bytes(), target);
        state.count_sent(filled as u64);
        faults::point("first-chunk-sent");
    }

    /// A slot with room in it, once there is one.
    fn poll_room(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Filling<P::Slot>, Error>> {
        state.writable()?;
        // Registered before it is looked at, so that nothing can change unseen in between.
        state.wait_to_send(cx);
        let full = |filling: &Filling<_>| filling.is_full();
        if self.filling.as_ref().is_some_and(full) || self.filling.is_none() {
            let _ = self.poll_posted(state, cx, false)?;
        }
        if self.filling.as_ref().is_some_and(full) {
            return Poll::Pending;
        }
        let fresh = |slot| Filling { slot, filled: 0 };
        match self
            .filling
            .take()
            .or_else(|| self.path.acquire().map(fresh))
        {
            Some(filling) => Poll::Ready(Ok(filling)),
            None => Poll::Pending,
        }
    }
}

/// The sending half of a stream over one kind of data path.
pub(crate) struct SendHalf<D: DataPath> {
    shared: Arc<Shared<D>>,
    /// The slot lent to [`FillSlots`], out of the steward's reach.
    lent: Option<Filling<<D::Send as SendPath>::Slot>>,
}

impl<D: DataPath> SendHalf<D> {
    /// The one sending half of `shared`.
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self { shared, lent: None }
    }

    fn state(&self) -> &State {
        &self.shared.state
    }

    fn sender(&self) -> Result<&Sender<D::Send>, Error> {
        self.shared
            .sender
            .as_ref()
            .ok_or(Error::Misuse("this stream only receives"))
    }

    /// Puts the lent slot back where the steward and `poll_posted` find it.
    fn give_back(&mut self) {
        let Some(filling) = self.lent.take() else {
            return;
        };
        let Some(sender) = &self.shared.sender else {
            return;
        };
        let mut lane = sender.lock();
        if filling.filled == 0 {
            lane.path.release(filling.slot);
        } else {
            lane.filling = Some(filling);
        }
    }

    /// Posts everything written so far; ready when it is with the network.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.give_back();
        self.shared.attended_send();
        let Ok(sender) = self.sender() else {
            return Poll::Ready(Ok(()));
        };
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error));
        }
        sender.lock().poll_posted(state, cx, true)
    }

    /// FIN, and the acknowledgement of the peer's endpoint.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Poll::Ready(Ok(())) = self.state().poll_acked(cx) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_flush(cx))?;
        let sender = self.sender()?;
        let (bytes, digest) = {
            let lane = sender.lock();
            (lane.chain.offset(), lane.chain.digest())
        };
        faults::point("before-fin");
        self.state().finish_sending(bytes, digest);
        faults::point("after-fin");
        self.state().poll_acked(cx)
    }

    /// [`poll_shutdown`](Self::poll_shutdown), and the confirmation of the peer's sink.
    pub(crate) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_shutdown(cx))?;
        faults::point("before-confirmation-received");
        self.state().poll_confirmed(cx)
    }

    /// Copies as much of `bytes` as fits into the chunk being filled.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Error>> {
        self.give_back();
        self.shared.attended_send();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let state = self.state();
        let mut lane = self.sender()?.lock();
        let mut filling = ready!(lane.poll_room(state, cx))?;
        let room = filling.room();
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        filling.filled += count;
        lane.filling = Some(filling);
        let _ = lane.poll_posted(state, cx, false)?;
        Poll::Ready(Ok(count))
    }
}

impl<D: DataPath> FillSlots for SendHalf<D> {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        if self.lent.as_ref().is_none_or(Filling::is_full) {
            self.give_back();
            self.shared.attended_send();
            let state = self.state();
            let filling = ready!(self.sender()?.lock().poll_room(state, cx))?;
            self.lent = Some(filling);
        }
        let filling = self.lent.as_mut().expect("it was put there just now");
        Poll::Ready(Ok(filling.room()))
    }

    fn advance(&mut self, count: usize) {
        if let Some(filling) = &mut self.lent {
            filling.filled += count;
        }
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.give_back();
        self.shared.attended_send();
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error.into()));
        }
        self.sender()?
            .lock()
            .poll_posted(state, cx, false)
            .map_err(Into::into)
    }
}

impl<D: DataPath> Drop for SendHalf<D> {
    fn drop(&mut self) {
        self.shared.state.release_half(true, false);
    }
}

impl<D: DataPath> Shared<D> {
    /// Notes that the user polls the sending half.
    fn attended_send(&self) {
        if let Some(sender) = &self.sender {
            sender.polls.fetch_add(1, Ordering::Relaxed);
            self.attended.wake();
        }
    }
}
