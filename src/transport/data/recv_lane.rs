//! The receive lane: from frames that arrive to verified chunks.
//!
//! The lane verifies each frame before its payload is delivered, and grants the slots of chunks that were read. It has no
//! task: the user's calls drive it, or the steward.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    task::{Context, Poll},
};

use bytes::Bytes;

use super::{
    frame::{Chain, Damage, Header, credit_batch},
    path::{NO_SLOT, ReceivePath, Slot, violation},
    slots::{
        lending::{ChunkLender, ReturnedChunks},
        readable::Readable,
    },
};
use crate::{
    Error, Fault, faults,
    transport::control::state::{Failure, State},
};

/// The receive lane, as the receiving half and the steward share it.
pub(crate) struct SharedRecvLane<P: ReceivePath> {
    lane: Mutex<RecvLane<P>>,
    /// The number of polls by the user, which tells the steward whether the user drives the lane.
    pub(crate) polls: AtomicU64,
    /// The lent chunks that were dropped.
    pub(crate) returns: Arc<ReturnedChunks<P::Slot>>,
}

/// The chunks that arrive, and the credits for their slots.
pub(crate) struct RecvLane<P: ReceivePath> {
    pub(super) path: P,
    pub(super) chain: Chain,
    /// Verified chunks that the reader has not taken yet.
    pub(super) ready: VecDeque<Readable<P::Slot>>,
    /// By slot: true if the peer may write it.
    pub(super) granted: Vec<bool>,
    /// The number of slots that the peer may write.
    pub(super) outstanding: usize,
    /// Slots that were read and are not granted again yet.
    pub(super) freed: Vec<u32>,
    /// The number of chunks that arrived and whose slot is not released.
    pub(super) unread: usize,
    /// Slots of a new pool that are not granted while chunks of the old pool are unread, so that the memory in use does
    /// not grow.
    pub(super) withheld: Vec<u32>,
    lender: ChunkLender<P::Slot>,
    broken: bool,
    pub(super) faults: faults::Faults,
}

impl<P: ReceivePath> SharedRecvLane<P> {
    /// A lane with `depth` slots over `path`. Its digests are seeded with `seed`.
    pub(crate) fn new(path: P, depth: u32, seed: u64, faults: faults::Faults) -> Self {
        let lane = RecvLane {
            path,
            chain: Chain::new(seed),
            ready: VecDeque::with_capacity(depth as usize),
            granted: vec![false; depth as usize],
            outstanding: 0,
            freed: (0..depth).collect(),
            unread: 0,
            withheld: Vec::new(),
            lender: ChunkLender::new(depth),
            broken: false,
            faults,
        };
        Self {
            polls: AtomicU64::new(0),
            returns: lane.lender.returns(),
            lane: Mutex::new(lane),
        }
    }

    /// Locks the lane. Only the user and the steward contend for it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, RecvLane<P>> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants every slot, at the start of the stream.
    pub(crate) fn grant_all(&self, state: &State) {
        self.lock().grant(state);
    }

    /// Drives the lane in place of the user, and wakes the user after progress.
    pub(crate) fn drive_unattended(&self, state: &State, cx: &mut Context<'_>) {
        let mut lane = self.lock();
        let before = (lane.ready.len(), state.announced_end());
        lane.receive_frames(state, cx, usize::MAX);
        if before != (lane.ready.len(), state.announced_end()) {
            state.wake_receiver();
        }
    }
}

impl<P: ReceivePath> RecvLane<P> {
    /// Takes the next verified chunk; `None` at the end of the stream.
    ///
    /// The chunk and the end are looked for under one lock. Otherwise the steward could verify the last chunk and complete
    /// the stream in between, and the user would get the end in place of the chunk.
    pub(crate) fn poll_next(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Readable<P::Slot>>, Error>> {
        if let Some(chunk) = self.next(state, cx) {
            return Poll::Ready(Ok(Some(chunk)));
        }
        if state.at_end()? {
            Poll::Ready(Ok(None))
        } else {
            Poll::Pending
        }
    }

    /// Takes the next verified chunk: one that waits, or the next that arrives.
    pub(crate) fn next(
        &mut self,
        state: &State,
        cx: &mut Context<'_>,
    ) -> Option<Readable<P::Slot>> {
        self.take_returned(state);
        if self.ready.is_empty() {
            if !self.broken {
                self.path.spin(|| state.expects_more());
            }
            self.receive_frames(state, cx, 1);
        }
        self.ready.pop_front()
    }

    /// Returns the unread rest of `chunk` as bytes that the user may keep: see [`ChunkLender::lend`].
    pub(crate) fn lend(&mut self, state: &State, chunk: Readable<P::Slot>) -> Bytes {
        let (bytes, chunk) = self.lender.lend(chunk);
        if let Some(chunk) = chunk {
            self.release(state, chunk);
        }
        bytes
    }

    /// Releases the lent chunks that were dropped.
    pub(crate) fn take_returned(&mut self, state: &State) {
        for chunk in self.lender.take_returned() {
            self.release(state, chunk);
        }
    }

    /// Returns true if verified chunks wait for the reader.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes frames from the path until `enough` chunks are ready, or no more have arrived. Damage and broken rules fail
    /// the stream before the payload is delivered.
    pub(super) fn receive_frames(&mut self, state: &State, cx: &mut Context<'_>, enough: usize) {
        loop {
            if let Err(fault) = self.check_end(state) {
                self.broken = true;
                state.fail(Failure::Fault(fault));
            }
            if self.broken || self.ready.len() >= enough || !state.receives() {
                return;
            }
            if self.faults.loses_completions() {
                return;
            }
            match self.path.poll_frame(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok((slot, header))) => {
                    if let Err(fault) = self.accept_frame(state, slot, header) {
                        self.broken = true;
                        state.fail(Failure::Fault(fault));
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.broken = true;
                    connection_lost(state, error);
                }
            }
        }
    }

    /// Verifies one frame and queues its payload.
    fn accept_frame(&mut self, state: &State, slot: P::Slot, header: Header) -> Result<(), Fault> {
        let index = slot.index();
        if index != NO_SLOT {
            let granted = self
                .granted
                .get_mut(index as usize)
                .is_some_and(std::mem::take);
            if !granted {
                return Err(Fault::Protocol("a chunk for a slot that was not granted"));
            }
            self.outstanding -= 1;
            self.unread += 1;
        }
        if header.slot != index {
            return Err(Fault::Protocol("a chunk that names another slot"));
        }
        let length = header.length as usize;
        if self.faults.ignores_digest() {
            self.chain.advance(&header);
        } else {
            let verified = self.chain.verify(&header, slot.payload(length));
            verified.map_err(|damage| Fault::Corrupt(damage.text()))?;
        }
        state.count_received(length as u64);
        faults::point("first-chunk-received");
        if self.faults.reuses_slots_early() && index != NO_SLOT {
            self.freed.push(index);
            self.grant(state);
        }
        // A chunk waits here only while the reader is away, so a reader that keeps up never copies.
        let joined = |last: &mut Readable<_>| last.join(slot.payload(length));
        let is_joined = self.ready.back_mut().is_some_and(joined);
        let readable = Readable::new(slot, length);
        if is_joined {
            self.release(state, readable);
        } else {
            self.ready.push_back(readable);
        }
        self.grant_due(state);
        Ok(())
    }

    /// Compares what has arrived with the FIN, if the FIN has arrived.
    fn check_end(&self, state: &State) -> Result<(), Fault> {
        let Some((bytes, digest)) = state.announced_end() else {
            return Ok(());
        };
        let damage = match self.chain.offset().cmp(&bytes) {
            std::cmp::Ordering::Less => return Ok(()),
            std::cmp::Ordering::Greater => Damage::Excess,
            std::cmp::Ordering::Equal if self.chain.digest() != digest => Damage::Whole,
            std::cmp::Ordering::Equal => {
                state.complete();
                return Ok(());
            }
        };
        Err(Fault::Corrupt(damage.text()))
    }

    /// Takes a slot back from the reader, and grants it again: at once if the peer has few slots, otherwise together with
    /// others, so that not every chunk costs a control message.
    pub(crate) fn release(&mut self, state: &State, done: Readable<P::Slot>) {
        let slot = done.into_slot();
        let index = slot.index();
        if index == NO_SLOT {
            self.path.release(slot);
            return;
        }
        self.unread -= 1;
        let is_free = self.path.release(slot);
        if self.faults.skips_credits() || self.faults.reuses_slots_early() || !self.path.can_grant()
        {
            return;
        }
        let Some(index) = is_free.then_some(index).or_else(|| self.withheld.pop()) else {
            return;
        };
        self.freed.push(index);
        self.grant_due(state);
    }

    /// Grants the free slots if they are enough for a message, or if the peer has few slots.
    fn grant_due(&mut self, state: &State) {
        let batch = credit_batch(self.granted.len());
        let is_due = self.freed.len() >= batch || self.outstanding < batch;
        if is_due && self.path.can_grant() && !self.faults.skips_credits() {
            self.grant(state);
        }
    }

    pub(super) fn grant(&mut self, state: &State) {
        if self.freed.is_empty() {
            return;
        }
        for index in &self.freed {
            self.granted[*index as usize] = true;
            self.path.post_receive(*index);
        }
        self.outstanding += self.freed.len();
        if let Err(fault) = state.grant(&mut self.freed, self.granted.len()) {
            self.broken = true;
            state.fail(Failure::Fault(fault));
        }
    }
}

/// Records the loss of the data connection. A broken rule is a fault of its own; any other error may be the consequence
/// of a cause that the control connection tells.
fn connection_lost(state: &State, error: io::Error) {
    match violation(&error) {
        Some(rule) => state.fail(Failure::Fault(Fault::Corrupt(rule))),
        None => state.suspect(Fault::Data(Arc::new(error))),
    }
}

#[cfg(test)]
mod tests;
