//! The express path as both sides of the data path use it: its setup, the wait for its events, and the tasks that wait.
//!
//! A wait has these steps: handle the completions that are there; poll for a short time, if recent polls have found
//! frames ([`Spin`]); arm the completion queue; handle completions once more, since those before make no event; wait
//! for the event.

use std::{
    hint, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::coop,
};

use super::{
    queue::{Drained, ExpressQueue, PeerWindows, RingLayout, queue_sizes},
    spin::{Spin, wakeup_time},
};
use crate::{
    faults::Faults,
    threads,
    transport::{
        control::seal::ReportSeal,
        data::frame::Header,
        rdma::{
            pool::RdmaSlot,
            verbs::{
                device::{CompletionQueue, ProtectionDomain},
                memory::MemoryRegion,
                queue_pair::{QueuePair, QueuePairAddress, QueuePairConfig},
            },
        },
    },
};

/// The number of polls after which the time is looked at. A look may be a system call, and takes longer than many
/// polls.
const POLLS_PER_LOOK: u32 = 32;

/// The number of the next express path of this process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(in crate::transport::rdma) struct ExpressPath {
    /// Dropped first: the registration of the descriptor.
    events: AsyncFd<Arc<CompletionQueue>>,
    inner: Mutex<PathState>,
    wakers: Arc<Wakers>,
    /// Wakes both sides.
    waker: Waker,
    id: u64,
    #[cfg(test)]
    polled_waits: AtomicU64,
}

struct PathState {
    queue: ExpressQueue,
    /// The completion queue makes an event for its next completion.
    is_armed: bool,
    spin: Spin,
    /// The express path has failed, and is not used any more.
    is_lost: bool,
    /// The failure, until it has been reported.
    failure: Option<io::Error>,
}

impl PathState {
    /// Marks the express path as lost if `result` is an error.
    fn lost_on_error<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.is_lost |= result.is_err();
        result
    }
}

impl ExpressPath {
    /// Watches the completion queue of `queue` in this runtime. `busy_poll` is the time that the user has chosen.
    /// Panics outside a tokio runtime with I/O enabled.
    #[allow(unsafe_code)]
    pub(super) fn new(
        queue: ExpressQueue,
        completions: &Arc<CompletionQueue>,
        busy_poll: Option<Duration>,
    ) -> io::Result<Self> {
        let watched = Arc::clone(completions);
        // SAFETY: the completion queue keeps its descriptor open, with the same number, until its last owner is
        // dropped, and the registration owns it.
        let events = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
        let events = events.map_err(|error| error.into_parts().1)?;
        let wakers = Arc::new(Wakers::default());
        let inner = PathState {
            queue,
            is_armed: false,
            spin: Spin::new(busy_poll),
            is_lost: false,
            failure: None,
        };
        Ok(Self {
            events,
            inner: Mutex::new(inner),
            waker: waker_of_both(&wakers),
            wakers,
            id: NEXT_ID.fetch_add(1, Relaxed),
            #[cfg(test)]
            polled_waits: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PathState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the most frames that may be under way to the peer.
    pub(in crate::transport::rdma) fn window(&self) -> usize {
        self.lock().queue.window()
    }

    /// Returns true if the express path has failed.
    pub(in crate::transport::rdma) fn is_lost(&self) -> bool {
        self.lock().is_lost
    }

    /// Returns true if a frame can be sent now.
    pub(in crate::transport::rdma) fn has_room(&self) -> bool {
        let inner = self.lock();
        !inner.is_lost && inner.queue.has_room()
    }

    /// Returns true while so many frames are under way that further bytes should wait to be sent together.
    pub(in crate::transport::rdma) fn is_busy(&self) -> bool {
        let inner = self.lock();
        !inner.is_lost && (inner.queue.expects_report() || !inner.queue.has_room())
    }

    /// Sends the frame of a chunk, for which there is room.
    /// Fails if the express path is lost.
    pub(in crate::transport::rdma) fn send(
        &self,
        header: &Header,
        payload: &[u8],
    ) -> io::Result<()> {
        let mut inner = self.lock();
        let sent = inner.queue.send(header, payload);
        inner.lost_on_error(sent)
    }

    /// Takes reports of the peer. With `waits`, or if the express path is busy, the task is woken when the peer has reported
    /// more.
    /// Fails once if the express path is lost, or the peer has broken a rule.
    pub(in crate::transport::rdma) fn poll_reports(
        &self,
        cx: &Context<'_>,
        waits: bool,
    ) -> io::Result<()> {
        let mut inner = self.lock();
        if let Some(error) = inner.failure.take() {
            return Err(error);
        }
        if inner.is_lost {
            return Ok(());
        }
        self.drain(&mut inner, Side::Send)?;
        let is_busy = |queue: &ExpressQueue| queue.expects_report() || !queue.has_room();
        let was_busy = is_busy(&inner.queue);
        if waits || was_busy {
            let is_done = |inner: &PathState| was_busy && !is_busy(&inner.queue);
            let waited = self.wait(&mut inner, cx, Side::Send, is_done);
            inner.lost_on_error(waited)?;
        }
        Ok(())
    }

    /// Takes the frame that follows the one which ends at `end`, if it has arrived. Otherwise the task is woken when
    /// frames arrive.
    /// Fails once if the express path is lost, or the peer has broken a rule.
    pub(in crate::transport::rdma) fn poll_frame(
        &self,
        cx: &mut Context<'_>,
        end: u64,
    ) -> io::Result<Poll<(RdmaSlot, Header)>> {
        // A task that finds frame after frame must let others run.
        let Poll::Ready(turn) = coop::poll_proceed(cx) else {
            return Ok(Poll::Pending);
        };
        let mut inner = self.lock();
        if let Some(error) = inner.failure.take() {
            return Err(error);
        }
        let is_next = |inner: &PathState| inner.queue.next_follows() == Some(end);
        if !inner.is_lost && !is_next(&inner) {
            self.drain(&mut inner, Side::Receive)?;
            if !is_next(&inner) {
                let waited = self.wait(&mut inner, cx, Side::Receive, is_next);
                inner.lost_on_error(waited)?;
            }
        }
        if !is_next(&inner) {
            return Ok(Poll::Pending);
        }
        turn.made_progress();
        Ok(inner.queue.take().map_or(Poll::Pending, Poll::Ready))
    }

    /// Returns the end of the frame before the next one that has arrived.
    pub(in crate::transport::rdma) fn next_follows(&self) -> Option<u64> {
        self.lock().queue.next_follows()
    }

    /// Polls for a short time for a frame, if recent polls have found frames. The next [`poll_frame`](Self::poll_frame)
    /// takes it.
    pub(in crate::transport::rdma) fn spin(&self) {
        let mut inner = self.lock();
        let is_useless = inner.is_lost || inner.queue.next_follows().is_some();
        if is_useless || !coop::has_budget_remaining() || self.poll_once(&mut inner) {
            Spin::pass(self.id);
            return;
        }
        let arrived = inner.queue.frames_received();
        let Some(longest) = inner.spin.begin_wait(self.id, arrived, wakeup_time()) else {
            return;
        };
        drop(inner);
        #[cfg(test)]
        self.polled_waits.fetch_add(1, Relaxed);
        let has_found = self.poll_for(longest);
        self.lock().spin.end_wait(arrived, has_found);
    }

    #[cfg(test)]
    pub(super) fn polled_waits(&self) -> u64 {
        self.polled_waits.load(Relaxed)
    }

    /// Polls until a frame arrives, the express path fails, or the time is over. Returns true if a frame has arrived.
    fn poll_for(&self, longest: Duration) -> bool {
        let is_parallel = threads::is_parallel();
        let began = Instant::now();
        loop {
            for _ in 0..POLLS_PER_LOOK {
                // The lock is free between two polls, for the other side.
                let mut inner = self.lock();
                if inner.is_lost {
                    return false;
                }
                if self.poll_once(&mut inner) {
                    return true;
                }
                drop(inner);
                if is_parallel {
                    hint::spin_loop();
                } else {
                    // The peer may need this processor.
                    thread::yield_now();
                    break;
                }
            }
            if began.elapsed() >= longest {
                return false;
            }
        }
    }

    /// Handles the completions that are there. Returns true if there is something for either side. A failure is kept
    /// for the next poll.
    fn poll_once(&self, inner: &mut PathState) -> bool {
        match self.drain(inner, Side::Receive) {
            Ok(drained) => drained.frames || drained.room,
            Err(error) => {
                inner.failure = Some(error);
                false
            }
        }
    }

    /// Takes back the slot of a frame that was read, and tells the peer when that is due.
    /// Fails once if the express path is lost.
    pub(in crate::transport::rdma) fn release(&self, slot: RdmaSlot) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.is_lost {
            return Ok(());
        }
        let released = inner.queue.release(slot);
        inner.lost_on_error(released)
    }

    /// Returns true if the peer has reported that it consumed a frame.
    pub(in crate::transport::rdma) fn has_carried(&self) -> bool {
        self.lock().queue.has_carried()
    }

    /// Returns the chunks that the peer has not reported as consumed, the oldest first.
    pub(in crate::transport::rdma) fn unconsumed(&self) -> Vec<(Header, Vec<u8>)> {
        self.lock().queue.unconsumed()
    }

    /// Handles every completion in the queue, and wakes the task of the other side if one concerns it.
    fn drain(&self, inner: &mut PathState, side: Side) -> io::Result<Drained> {
        let drained = inner.queue.drain();
        let drained = inner.lost_on_error(drained);
        let (frames, room) = match &drained {
            Ok(Drained { frames, room }) => (*frames, *room),
            // Both sides find that the express path is lost.
            Err(_) => (true, true),
        };
        if room && side != Side::Send {
            self.wakers.wake_side(Side::Send);
        }
        if frames && side != Side::Receive {
            self.wakers.wake_side(Side::Receive);
        }
        drained
    }

    /// Waits until `is_done`, or has the task woken by the next event.
    fn wait(
        &self,
        inner: &mut PathState,
        cx: &Context<'_>,
        side: Side,
        is_done: impl Fn(&PathState) -> bool,
    ) -> io::Result<()> {
        self.wakers.register(side, cx);
        let mut both = Context::from_waker(&self.waker);
        loop {
            if !inner.is_armed {
                self.events.get_ref().arm()?;
                inner.is_armed = true;
                self.drain(inner, side)?;
                if is_done(inner) {
                    return Ok(());
                }
            }
            let Poll::Ready(ready) = self.events.poll_read_ready(&mut both) else {
                return Ok(());
            };
            let mut ready = ready?;
            match self.events.get_ref().take_event() {
                Ok(()) => {
                    inner.is_armed = false;
                    // There is one event for each time the queue is armed, so the descriptor is not readable any more.
                    ready.clear_ready();
                    self.drain(inner, side)?;
                    if is_done(inner) {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Err(error),
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The sending side, which waits for reports of the peer.
    Send,
    /// The receiving side, which waits for frames.
    Receive,
}

/// The waker of each side. As a waker itself it wakes both, because an event does not identify the side.
#[derive(Default)]
pub(super) struct Wakers {
    send: AtomicWaker,
    receive: AtomicWaker,
}

impl Wakers {
    /// Registers the task that waits for `side`.
    pub(super) fn register(&self, side: Side, cx: &Context<'_>) {
        self.of(side).register(cx.waker());
    }

    /// Wakes the task that waits for `side`.
    pub(super) fn wake_side(&self, side: Side) {
        self.of(side).wake();
    }

    fn of(&self, side: Side) -> &AtomicWaker {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.receive,
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.send.wake();
        self.receive.wake();
    }
}

/// Returns a waker that wakes both sides.
pub(super) fn waker_of_both(wakers: &Arc<Wakers>) -> Waker {
    Waker::from(Arc::clone(wakers))
}

/// One end's part of an express path, as the peer receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::transport::rdma) struct ExpressOffer {
    address: QueuePairAddress,
    /// The frames for which this end has memory.
    windows: PeerWindows,
}

/// The settings of the express path of one link.
pub(in crate::transport::rdma) struct ExpressSettings {
    /// The number of the link.
    pub(in crate::transport::rdma) generation: u32,
    /// The time that the user has chosen for polls.
    pub(in crate::transport::rdma) busy_poll: Option<Duration>,
    /// What seals the reports, those of this end first; none if they are not sealed.
    pub(in crate::transport::rdma) reports: [Option<ReportSeal>; 2],
    pub(in crate::transport::rdma) faults: Faults,
}

/// An express path that is not connected yet. Its receives are posted.
pub(in crate::transport::rdma) struct UnconnectedExpress {
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    config: QueuePairConfig,
    ring: RingLayout,
    offer: ExpressOffer,
}

impl UnconnectedExpress {
    /// Opens the device, and makes a queue pair with the memory of `ring`.
    /// Fails as the device does, or if the memory cannot be pinned.
    pub(in crate::transport::rdma) fn open(
        config: &QueuePairConfig,
        ring: RingLayout,
    ) -> io::Result<Self> {
        let domain = Arc::new(ProtectionDomain::open(&config.device)?);
        let memory = MemoryRegion::register(&domain, ring.bytes())?;
        let sizes = queue_sizes(ring);
        let completions = Arc::new(CompletionQueue::new(&domain, sizes.sends + sizes.receives)?);
        let mut pair = QueuePair::new(&completions, memory, config, sizes)?;
        for index in 0..ring.posted_receives() {
            pair.post_receive(u64::from(index), &ring.receive(index))?;
        }
        let address = pair.address(config)?;
        Ok(Self {
            pair,
            completions,
            config: config.clone(),
            ring,
            offer: ExpressOffer {
                address,
                windows: PeerWindows {
                    sends: ring.sends,
                    receives: ring.receives,
                },
            },
        })
    }

    /// Returns this end's part of the express path, for the peer.
    pub(in crate::transport::rdma) fn offer(&self) -> ExpressOffer {
        self.offer
    }

    /// Connects to the peer's express path.
    /// Fails if the two ends do not match.
    pub(in crate::transport::rdma) fn connect(
        mut self,
        theirs: ExpressOffer,
        settings: ExpressSettings,
    ) -> io::Result<ExpressPath> {
        if (self.ring.sends > 0) != (theirs.windows.receives > 0) {
            return Err(io::Error::other("the other end receives no small frames"));
        }
        self.pair.connect(&self.config, theirs.address)?;
        let busy_poll = settings.busy_poll;
        let queue = ExpressQueue::new(self.pair, self.ring, theirs.windows, settings);
        ExpressPath::new(queue, &self.completions, busy_poll)
    }
}
