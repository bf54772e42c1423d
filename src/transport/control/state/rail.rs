//! What belongs to one rail of a stream: its credits, the wakers of those who drive it, and the ends of its chains.

use std::{
    collections::VecDeque,
    mem,
    ops::Deref,
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
};

use super::{State, connections::Connections, machine::Receiving};
use crate::{
    Fault,
    transport::control::{message::Message, seal::joined_digest},
};

/// The part of a stream's state that belongs to one rail.
#[derive(Default)]
pub(super) struct RailMachine {
    pub(super) credits: Credits,
    /// The number of credits of this rail in the outbox.
    pub(super) unsent_credits: usize,
    /// The end of the chain of what was sent.
    pub(super) sent_digest: u64,
    /// The end of the chain of what was received.
    received_digest: u64,
    send_waker: Option<Waker>,
    receive_waker: Option<Waker>,
    steward_waker: Option<Waker>,
    /// Whether to wake the user of the sending half, and the user of the receiving half.
    to_wake: [bool; 2],
    /// The steps of the peer towards a new link.
    steps: VecDeque<Result<Vec<u8>, String>>,
    /// The connections of a rail over TCP.
    pub(super) connections: Connections,
}

impl RailMachine {
    /// Has the users of these halves woken, and the steward.
    pub(super) fn wake(&mut self, sender: bool, receiver: bool) {
        self.to_wake[0] |= sender;
        self.to_wake[1] |= receiver;
    }

    /// Takes the wakers that are to be called now.
    pub(super) fn take_woken(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let [sender, receiver] = mem::take(&mut self.to_wake);
        let woken = [
            self.send_waker.take_if(|_| sender),
            self.receive_waker.take_if(|_| receiver),
            self.steward_waker.take_if(|_| sender || receiver),
        ];
        woken.into_iter().flatten()
    }

    /// Registers the sender's waker.
    pub(super) fn wait_to_send(&mut self, cx: &Context<'_>) {
        register(&mut self.send_waker, cx);
    }

    /// Keeps a step of the peer for the renewal of the link.
    pub(super) fn add_step(&mut self, step: Result<Vec<u8>, String>) -> Result<(), &'static str> {
        if self.steps.len() >= MOST_STEPS {
            return Err("more steps than there are");
        }
        self.steps.push_back(step);
        Ok(())
    }

    /// Returns the number of slots of the peer's pool.
    pub(super) fn peer_slots(&self) -> usize {
        self.credits.queued.len()
    }

    /// Adds credits, and has the sender woken if it waits for one.
    pub(super) fn add_credits(
        &mut self,
        slots: impl IntoIterator<Item = u32>,
    ) -> Result<(), &'static str> {
        if self.credits.add(slots)? {
            self.wake(true, false);
        }
        Ok(())
    }
}

/// The most steps of the peer that can wait here. A renewal takes four, and the peer does not begin another one
/// before this end has finished.
const MOST_STEPS: usize = 8;

/// Returns the rail of a slot, and the number of the slot in the pool of that rail. Credits number the slots of all
/// rails: each rail has a pool of `pool` slots.
pub(super) fn place(slot: u32, pool: usize) -> (usize, u32) {
    let pool = u32::try_from(pool).unwrap_or(u32::MAX).max(1);
    ((slot / pool) as usize, slot % pool)
}

fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

/// How what has arrived differs from what the FIN says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongEnd {
    /// More bytes arrived, or are about to.
    Excess,
    /// All bytes have arrived, but the digest over the chains is another one.
    Digest,
}

/// The state of a stream, as one of its rails uses it.
#[derive(Clone)]
pub(crate) struct RailState {
    stream: Arc<State>,
    pub(super) rail: usize,
}

impl Deref for RailState {
    type Target = State;

    fn deref(&self) -> &State {
        &self.stream
    }
}

impl RailState {
    pub(crate) fn new(stream: &Arc<State>, rail: usize) -> Self {
        let stream = Arc::clone(stream);
        Self { stream, rail }
    }

    /// Returns true for the rail that the users of the stream's halves drive: FIN and everything about the end of the
    /// stream is its part.
    pub(crate) fn is_first(&self) -> bool {
        self.rail == 0
    }

    /// Returns true if the stream has other rails beside this one.
    pub(crate) fn has_others(&self) -> bool {
        self.lock().rails.len() > 1
    }

    /// Wakes the task that waits for the sending half of the stream: another rail has made progress.
    pub(crate) fn wake_sending_user(&self) {
        let waker = self.lock().rails[0].send_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task that waits for the receiving half of the stream: another rail has verified a chunk.
    pub(crate) fn wake_receiving_user(&self) {
        let waker = self.lock().rails[0].receive_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Counts a chunk that the user hands to another rail.
    pub(crate) fn count_queued(&self) {
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a chunk of another rail that was posted: the last one may be the one for which a flush or FIN waits.
    pub(crate) fn count_posted(&self) {
        if self.queued.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut inner = self.lock();
            inner.wake_first_sender();
            self.finish_update(inner);
        }
    }

    /// Returns true if another rail has chunks that it has not posted.
    pub(crate) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire) > 0
    }

    /// Registers the steward's waker, which is called whenever a half is woken.
    pub(crate) fn wait_as_steward(&self, cx: &Context<'_>) {
        register(&mut self.lock().rails[self.rail].steward_waker, cx);
    }

    /// Registers the sender's waker: for credits, acknowledgements and failures.
    pub(crate) fn wait_to_send(&self, cx: &Context<'_>) {
        self.lock().rails[self.rail].wait_to_send(cx);
    }

    /// Registers the reader's waker: for FIN and failures.
    pub(crate) fn wait_to_receive(&self, cx: &Context<'_>) {
        register(&mut self.lock().rails[self.rail].receive_waker, cx);
    }

    /// Wakes the task that waits for the sending half.
    pub(crate) fn wake_sender(&self) {
        let waker = self.lock().rails[self.rail].send_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task that waits for the receiving half.
    pub(crate) fn wake_receiver(&self) {
        let waker = self.lock().rails[self.rail].receive_waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Drops all credits, and expects credits for a pool of `slots` slots from now on. Call this before the peer can
    /// send a credit for that pool.
    pub(crate) fn set_peer_slots(&self, slots: usize) {
        self.lock().rails[self.rail].credits.set_pool(slots);
    }

    /// Takes the oldest credit: a slot of the peer that may be written.
    pub(crate) fn take_credit(&self) -> Option<u32> {
        self.lock().rails[self.rail].credits.take()
    }

    pub(crate) fn credits_left(&self) -> usize {
        self.lock().rails[self.rail].credits.left()
    }

    /// Counts one chunk of `bytes` that was given to the data path, after which the chain of the rail is `digest`.
    pub(crate) fn count_sent(&self, bytes: u64, digest: u64) {
        let mut inner = self.lock();
        inner.stats.bytes_sent += bytes;
        inner.stats.chunks_sent += 1;
        inner.rails[self.rail].sent_digest = digest;
    }

    /// Counts one chunk of `bytes` that arrived and was verified, after which the chain of the rail is `digest`.
    pub(crate) fn count_received(&self, bytes: u64, digest: u64) {
        let mut inner = self.lock();
        inner.stats.bytes_received += bytes;
        inner.stats.chunks_received += 1;
        inner.rails[self.rail].received_digest = digest;
        if inner.stop_after_excess() {
            self.to_control.notify_one();
        }
    }

    /// Compares what has arrived on all rails with the FIN, if the FIN has arrived. If it is all, acknowledges the FIN.
    /// `arriving_end` is the end of the frame of this rail that has arrived in part.
    pub(crate) fn check_end(&self, arriving_end: u64) -> Result<(), WrongEnd> {
        let mut inner = self.lock();
        let Receiving::Fin(bytes, digest) = inner.receiving else {
            return Ok(());
        };
        let received = inner.stats.bytes_received;
        // A length that was made larger on the way promises bytes that never come.
        if received > bytes || (received < bytes && arriving_end > bytes) {
            return Err(WrongEnd::Excess);
        }
        if received < bytes {
            return Ok(());
        }
        if joined_digest(inner.rails.iter().map(|rail| rail.received_digest)) != digest {
            return Err(WrongEnd::Digest);
        }
        inner.receiving = Receiving::Complete;
        inner.outbox.push(Message::FinAck);
        inner.leave_if_done();
        self.to_control.notify_one();
        // The readers of the other rails wait for the end.
        if inner.rails.len() > 1 {
            inner.wake(false, true);
        }
        self.finish_update(inner);
        Ok(())
    }

    /// Grants slots of this rail to the peer, which may write them. Takes them out of `slots`. The pool of the rail has
    /// `depth` slots.
    /// Fails with [`Fault::Protocol`] if more than `depth` credits would wait in the outbox. So a Credit always fits
    /// into one message, although a connection that the peer does not read keeps it here.
    pub(crate) fn grant(&self, slots: &mut Vec<u32>, depth: usize) -> Result<(), Fault> {
        let mut inner = self.lock();
        let rail = &mut inner.rails[self.rail];
        if rail.unsent_credits + slots.len() > depth {
            slots.clear();
            return Err(Fault::Protocol(UNGRANTED_CHUNKS));
        }
        rail.unsent_credits += slots.len();
        if self.rail > 0 {
            let first = u32::try_from(self.rail * depth).expect("all rails have few slots");
            for slot in slots.iter_mut() {
                *slot += first;
            }
        }
        if let Some(Message::Credit(granted)) = inner.outbox.last_mut() {
            granted.append(slots);
        } else {
            inner.outbox.push(Message::Credit(mem::take(slots)));
        }
        // The control task takes the lock first: woken before the lock is free, it would wait again.
        drop(inner);
        self.to_control.notify_one();
        Ok(())
    }

    /// Records that the user dropped the sending half of this rail: see [`State::release_sender`].
    pub(crate) fn release_sender(&self, all_was_sent: bool) {
        if self.is_first() {
            self.stream.release_sender(all_was_sent);
        }
    }

    /// Records that the user dropped the receiving half of this rail: see [`State::release_receiver`].
    pub(crate) fn release_receiver(&self, taken: u64, unread: bool) {
        if self.is_first() {
            self.stream.release_receiver(taken, unread);
        }
    }
}

/// A slot is granted once, until its chunk has arrived. So credits for more slots than there are mean that a chunk
/// arrived for a credit that was not sent.
const UNGRANTED_CHUNKS: &str = "chunks for slots whose credits were not sent yet";

#[cfg(feature = "rdma")]
impl RailState {
    /// Drops all credits, and stops [`take_credit`](Self::take_credit) until [`resume`](Self::resume): their slots are
    /// about to be replaced.
    pub(crate) fn pause(&self) {
        self.lock().rails[self.rail].credits.pause();
    }

    /// Sends a step of the renewal to the peer.
    pub(crate) fn send_step(&self, step: Result<Vec<u8>, String>) {
        let rail = u8::try_from(self.rail).expect("a stream has few rails");
        self.lock().outbox.push(Message::Step { rail, step });
        self.to_control.notify_one();
    }

    /// Takes the oldest step of the peer that has arrived.
    pub(crate) fn take_step(&self) -> Option<Result<Vec<u8>, String>> {
        self.lock().rails[self.rail].steps.pop_front()
    }

    /// Waits until a step of the peer may have arrived.
    pub(crate) async fn stepped(&self) {
        self.steps[self.rail].notified().await;
    }

    /// Lets credits be taken again. Those that arrived since [`pause`](Self::pause) are for the new slots.
    pub(crate) fn resume(&self) {
        self.lock().rails[self.rail].credits.resume();
    }
}

/// The slots of the peer that this end may write, in the order in which they were granted. A slot is in the queue at
/// most once, so the queue is never longer than the pool of the peer, whatever the peer sends.
#[derive(Default)]
pub(super) struct Credits {
    slots: VecDeque<u32>,
    /// By slot of the peer's pool: true while the slot is in the queue.
    queued: Vec<bool>,
    /// No credit is given out, because the pool of their slots is being replaced.
    paused: bool,
    /// The last request for a credit found none.
    starved: bool,
}

impl Credits {
    /// Drops all credits, and expects those for a pool of `slots` slots.
    pub(super) fn set_pool(&mut self, slots: usize) {
        self.slots.clear();
        self.queued.clear();
        self.queued.resize(slots, false);
    }

    /// Returns the credits that wait, the oldest first.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().copied()
    }

    pub(super) fn left(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = if self.paused {
            None
        } else {
            self.slots.pop_front()
        };
        self.starved = slot.is_none();
        if let Some(slot) = slot {
            self.queued[slot as usize] = false;
        }
        slot
    }

    /// Adds credits. Returns true if the sender waits for one.
    /// The error is the rule that the peer broke. The credits before the wrong one are added.
    fn add(&mut self, slots: impl IntoIterator<Item = u32>) -> Result<bool, &'static str> {
        for slot in slots {
            let queued = self.queued.get_mut(slot as usize).ok_or(UNKNOWN_SLOT)?;
            if mem::replace(queued, true) {
                return Err(GRANTED_TWICE);
            }
            self.slots.push_back(slot);
        }
        Ok(self.starved)
    }
}

pub(super) const UNKNOWN_SLOT: &str = "a credit for a slot that its pool does not have";
const GRANTED_TWICE: &str = "a credit for a slot that is granted already";

#[cfg(feature = "rdma")]
impl Credits {
    /// Drops all credits, and gives none out until [`resume`](Self::resume).
    pub(super) fn pause(&mut self) {
        self.set_pool(self.queued.len());
        self.paused = true;
    }

    /// Gives credits out again.
    pub(super) fn resume(&mut self) {
        self.paused = false;
    }
}
