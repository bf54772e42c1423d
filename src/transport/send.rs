//! The sending half: from the user's bytes to the sending lane.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use super::{
    path::{DataPath, SendPath},
    sender::{Filling, Sender},
    shared::Shared,
    state::State,
};
use crate::{Error, faults, pump::FillSlots};

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
        sender.lock().give_back(filling);
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
        let (bytes, digest) = sender.lock().posted();
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
        filling.fill(count);
        lane.give_back(filling);
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
            filling.fill(count);
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
