//! The sending half: writes, flush and FIN, as calls of the send lane and the state.
//!
//! A half belongs to one user. Each call moves the data of the lane as far as it goes, so that no task stands between
//! the user and the data path; while the user does not call, the steward does.

use std::{
    io::{self, IoSlice},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use super::{
    path::{DataPath, SendPath},
    send_lane::SharedSendLane,
    shared::{Attendance, Shared},
    slots::{FillSlots, FillingSlot, LentSlot},
};
use crate::{Error, faults, transport::control::state::State};

/// The sending half of a stream over one kind of data path.
pub(crate) struct SendHalf<D: DataPath> {
    shared: Arc<Shared<D>>,
    /// The slot that [`FillSlots`] has lent. The steward does not see it.
    lent: Option<FillingSlot<<D::Send as SendPath>::Slot>>,
}

impl<D: DataPath> SendHalf<D> {
    /// Returns the one sending half of `shared`.
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self { shared, lent: None }
    }

    fn state(&self) -> &State {
        &self.shared.state
    }

    fn send_lane(&self) -> Result<&SharedSendLane<D::Send>, Error> {
        self.shared
            .send_lane
            .as_ref()
            .ok_or(Error::Misuse("this stream only receives"))
    }

    /// Gives the slot that was lent back to the lane, where the steward and `poll_posted` find it.
    fn give_back(&mut self) {
        let Some(filling) = self.lent.take() else {
            return;
        };
        let Some(send_lane) = &self.shared.send_lane else {
            return;
        };
        send_lane.lock().give_back(filling);
    }

    /// Posts everything written so far. Ready when the data path has all of it: as over TCP, it may still be on its
    /// way. To wait for its completion would let a peer's answer overtake it: hyper takes an end of file that it reads
    /// while its flush is pending for a client that broke off.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.poll_sent(cx) {
            Poll::Pending if self.is_all_posted() => Poll::Ready(Ok(())),
            sent => sent,
        }
    }

    /// Posts everything written so far. Ready when the data path has sent it.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let Ok(send_lane) = self.send_lane() else {
            return Poll::Ready(Ok(()));
        };
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error));
        }
        send_lane.lock().poll_posted(state, cx, true)
    }

    /// Sends FIN after the last byte. Ready when the peer's endpoint has acknowledged it.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Poll::Ready(Ok(())) = self.state().poll_acked(cx) {
            return Poll::Ready(Ok(()));
        }
        if self.is_all_taken() {
            return Poll::Ready(Ok(()));
        }
        self.state().begin_shutdown();
        ready!(self.poll_sent(cx))?;
        let send_lane = self.send_lane()?;
        send_lane.lock().finish(self.state());
        self.state().poll_acked(cx)
    }

    /// Returns true if the peer's reader has stopped, and had taken every byte that was written.
    fn is_all_taken(&self) -> bool {
        let (Some(taken), Some(send_lane)) = (self.state().stopped_after(), &self.shared.send_lane)
        else {
            return false;
        };
        let lane = send_lane.lock();
        self.lent.is_none() && lane.is_all_posted() && lane.posted() <= taken
    }

    fn is_all_posted(&self) -> bool {
        let send_lane = self.shared.send_lane.as_ref();
        send_lane.is_some_and(|send_lane| send_lane.lock().is_all_posted())
    }

    /// Shuts down. Ready when the peer's sink has confirmed every byte.
    pub(crate) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_shutdown(cx))?;
        faults::point("before-confirmation-received");
        self.state().poll_confirmed(cx)
    }

    /// Copies as much of `parts` as fits into the chunk being filled.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let state = self.state();
        let mut lane = self.send_lane()?.lock();
        let mut filling = ready!(lane.poll_room(state, cx))?;
        let count = filling.copy(parts);
        lane.give_back(filling);
        let _ = lane.poll_posted(state, cx, false)?;
        Poll::Ready(Ok(count))
    }

    /// Lends an empty slot to the user.
    pub(crate) fn poll_lent(&mut self, cx: &mut Context<'_>) -> Poll<Result<LentSlot<D>, Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let state = self.state();
        let filling = ready!(self.send_lane()?.lock().poll_lent(state, cx))?;
        Poll::Ready(Ok(LentSlot::new(filling, &self.shared)))
    }

    /// Queues a slot that the user filled, and posts it if possible. Otherwise the steward or the user's next call
    /// posts it.
    pub(crate) fn send(&mut self, lent: LentSlot<D>) -> Result<(), Error> {
        self.give_back();
        let _attended = self.shared.attend_send();
        self.state().writable()?;
        let filling = lent.into_filling(&self.shared).ok_or(FOREIGN_BUFFER)?;
        let mut lane = self.send_lane()?.lock();
        lane.seal(filling);
        let mut cx = Context::from_waker(Waker::noop());
        match lane.poll_posted(self.state(), &mut cx, false) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }
}

/// The error for a buffer that another stream has lent.
pub(crate) const FOREIGN_BUFFER: Error = Error::Misuse("this buffer belongs to another stream");

impl<D: DataPath> FillSlots for SendHalf<D> {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        if self.lent.as_ref().is_none_or(FillingSlot::is_full) {
            self.give_back();
            let _attended = self.shared.attend_send();
            let state = self.state();
            let filling = ready!(self.send_lane()?.lock().poll_room(state, cx))?;
            self.lent = Some(filling);
        }
        let filling = self.lent.as_mut().expect("it was put there just now");
        Poll::Ready(Ok(filling.room()))
    }

    fn advance(&mut self, count: usize) {
        if let Some(filling) = &mut self.lent {
            filling.fill(count);
        }
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error.into()));
        }
        self.send_lane()?
            .lock()
            .poll_posted(state, cx, false)
            .map_err(Into::into)
    }
}

impl<D: DataPath> Drop for SendHalf<D> {
    fn drop(&mut self) {
        self.give_back();
        self.shared.state.release_sender(self.is_all_posted());
    }
}

impl<D: DataPath> Shared<D> {
    /// Begins a poll of the sending half by its user. It is counted when the returned value is dropped.
    fn attend_send(&self) -> Option<Attendance<'_>> {
        let send_lane = self.send_lane.as_ref()?;
        Some(Attendance::new(&send_lane.polls, &self.attended))
    }
}
