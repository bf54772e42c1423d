//! Replaces the link of a stream while the stream runs. The users of the stream do not notice.
//!
//! There are two reasons to replace a link. async-rdma leaks kernel memory with every completion, until its completion
//! queue is destroyed; and a link can fail while both ends live. Either end may begin. The steps travel on the control
//! connection, in lockstep:
//!
//! ```text
//!   credits are set aside; writes in flight complete, or fail
//!   Begin {frames written}      ◄──────────►
//!   everything that was written is taken from the old link; what failed is kept; the old link and its
//!   pools are taken down (chunks that the reader has not had move to ordinary memory)
//!   Open {endpoint, slots, express, bytes verified}  ◄─────►    again and again while a way is closed
//!   Connected                   ◄──────────►
//!   what failed is written once more, unless it had arrived after all; all slots are granted
//! ```
//!
//! Each rail of a stream renews its link by itself, and each step names its rail.
//!
//! No step waits for a user: a reader that does not read, or a writer that does not write, does not delay a renewal.
//!
//! Each end takes as many frames off the old link as the peer says it has written: what a device has acknowledged is
//! there. Chunks that the reader has not taken move to ordinary memory, and as many slots of the new pool are withheld
//! until they have been read, so the number of unread bytes never grows. A slot of an old pool is never used with a new
//! link: each slot carries the generation of its pool. The operations of a link wake the task that polled them last,
//! which may be the user's or the steward's; so each completion also wakes the renewal's own task (`Renewal::notify`).
//! While no path works, `Open` is repeated until nothing has crossed for the stream's `timeout`.
//!
//! A rail may have several pairs of ports, the same ones in the same order at both ends ([`LinkPlan`]). Both ends turn to
//! the next pair after each attempt to connect that fails. An end whose link was lost makes the first attempt fail: its
//! first step is the reason in place of `Open`. Otherwise both ends would try the pair of ports that has just failed, and
//! a queue pair connects there although no packet passes.
//!
//! # Pools that come later
//!
//! A stream with an express path begins without pools: many streams only carry small messages, and to pin the memory of
//! the pools takes most of the time that a connection takes. The first frame that needs a slot asks for them:
//!
//! ```text
//!   sender                            receiver
//!   Pool                       ───►   both register their pools meanwhile
//!                              ◄───   Slots {slots}
//!                              ◄───   credits
//! ```
//!
//! In a two-way stream the memory is registered on a thread of its own, so that the small messages of the other
//! direction go on meanwhile. The sender takes no credit before it knows the slots. If the memory cannot be registered,
//! the link is replaced as one that was lost: later links begin with the pools that were needed before. These steps may
//! come before the first step of a renewal, and then say nothing about the new link's slots.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Poll, ready},
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    Direction, Fault, threads,
    transport::{
        control::{
            data_watch::{DataProgress, Stall, StalledPath},
            state::{RailState, StreamFault},
        },
        data::{
            frame_sender::SharedSender,
            slots::{Renewable, violation},
            steward::Shared,
        },
        rdma::{
            Rdma,
            link::{COMPLETION_LIMIT, Link, MemoryAccess, SlotToken},
            link_setup::{
                ConnectedLink, LinkOffer, LinkPlan, LiveLink, UnconnectedLink, decode, encode,
            },
            nudge::Nudges,
            pool::RdmaSlot,
            send_path::{RdmaSend, SendLink},
        },
    },
};

/// What both sides of the data path share with the task that renews the link.
pub(crate) struct RenewalShared {
    state: RailState,
    /// The number of chunks that have completed on this link.
    completions: AtomicU64,
    completions_with_nudges: AtomicU64,
    /// The number of completions after which the link is replaced.
    limit: u64,
    is_underway: AtomicBool,
    /// A frame needs pools that are not registered yet.
    needs_pools: AtomicBool,
    requested: Notify,
    /// Wakes the renewal after a completion, whichever task polled it.
    progress: AtomicWaker,
    /// Finds completions that were missed.
    pub(in crate::transport::rdma) nudges: Nudges,
    reason: Mutex<Option<RenewalReason>>,
}

/// The reason why a link is replaced.
enum RenewalReason {
    /// The link has reached its limit of completions.
    Used,
    /// The link failed.
    Lost(io::Error),
    /// The counts of the link stand still.
    Silent(SilentLink),
}

impl RenewalReason {
    /// Returns the error of a link that failed.
    fn lost(&self) -> Option<String> {
        match self {
            Self::Lost(error) => Some(error.to_string()),
            Self::Used | Self::Silent(_) => None,
        }
    }
}

impl RenewalShared {
    /// Requests a new link after `limit` completions.
    pub(crate) fn new(state: RailState, limit: u64) -> Self {
        Self {
            state,
            completions: AtomicU64::new(0),
            completions_with_nudges: AtomicU64::new(0),
            limit,
            is_underway: AtomicBool::new(false),
            needs_pools: AtomicBool::new(false),
            requested: Notify::new(),
            progress: AtomicWaker::new(),
            nudges: Nudges::default(),
            reason: Mutex::new(None),
        }
    }

    /// Counts the completion of a chunk.
    pub(crate) fn count(&self) {
        self.completions.fetch_add(1, Ordering::Relaxed);
        self.nudges.count();
        self.count_used();
    }

    fn count_used(&self) {
        if self.completions_with_nudges.fetch_add(1, Ordering::Relaxed) + 1 == self.limit {
            self.request(None);
        }
    }

    /// Nudges the link whenever its completions pause.
    async fn nudge(&self) -> Infallible {
        let posted = |result| match result {
            Ok(()) => self.count_used(),
            Err(_) if self.is_underway() => {}
            Err(error) => self.request(Some(error)),
        };
        let found = |completions| self.state.count_late_completions(completions);
        self.nudges.run(posted, found).await
    }

    /// Returns the counts of the data paths of all rails.
    fn data(&self) -> &DataProgress {
        &self.state.data
    }

    /// Records that `bytes` of payload have been sent: their write has completed, the express path has them, or the peer
    /// has verified them. A frame that is sent again is counted once.
    pub(crate) fn count_sent(&self, bytes: u64) {
        self.data().add_sent(bytes);
    }

    /// Records that a frame with `bytes` of payload has been received.
    pub(crate) fn count_received(&self, bytes: u64) {
        self.data().add_received(bytes);
    }

    /// Wakes the renewal: a work request has completed or failed.
    pub(crate) fn notify(&self) {
        self.progress.wake();
    }

    /// Requests a new link, because this one was lost or has reached its limit.
    pub(crate) fn request(&self, lost: Option<io::Error>) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        // The first error is the cause, and tells more than the limit.
        match (&*reason, lost) {
            (Some(RenewalReason::Lost(_)), _) | (Some(_), None) => {}
            (_, Some(error)) => *reason = Some(RenewalReason::Lost(error)),
            (None, None) => *reason = Some(RenewalReason::Used),
        }
        self.requested.notify_one();
    }

    /// Requests the pools that are not registered yet: a frame needs them.
    pub(crate) fn request_pools(&self) {
        self.needs_pools.store(true, Ordering::Release);
        self.requested.notify_one();
    }

    /// Handles a failure of the express path: a broken rule ends the stream, and any other failure requests a new link.
    pub(crate) fn note_express_result(&self, result: io::Result<()>) {
        let Err(error) = result else { return };
        match violation(&error) {
            Some(rule) => self.state.fail(StreamFault::Found(Fault::Corrupt(rule))),
            None if self.is_underway() => {}
            None => self.request(Some(error)),
        }
    }

    /// Requests a new link, because the counts of this one stand still.
    fn request_for(&self, stall: Stall) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if let None | Some(RenewalReason::Used) = *reason {
            *reason = Some(RenewalReason::Silent(SilentLink::new(stall, self.data())));
            self.requested.notify_one();
        }
    }

    /// Fails the stream: a new link would not help.
    pub(crate) fn fail(&self, error: io::Error) {
        self.state
            .fail(StreamFault::Found(Fault::Data(Arc::new(error))));
    }

    /// Returns true while bytes may arrive.
    pub(crate) fn receives(&self) -> bool {
        self.state.receives()
    }

    /// Returns true while the link is being replaced, and slots must not be granted.
    pub(crate) fn is_underway(&self) -> bool {
        self.is_underway.load(Ordering::Acquire)
    }

    /// Takes the reason for a new link, if one is requested.
    fn take_reason(&self) -> Option<RenewalReason> {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// How late a completion may be: longer than the time for which [`link`](crate::transport::rdma::link) may miss one.
const COMPLETION_DELAY_LIMIT: Duration = COMPLETION_LIMIT.saturating_add(Duration::from_secs(1));

/// A link whose counts stand still, and the count that stood still when that was noticed.
#[derive(Clone, Copy)]
struct SilentLink {
    stall: Stall,
    count: u64,
}

impl SilentLink {
    fn new(stall: Stall, progress: &DataProgress) -> Self {
        let count = count_of(stall, progress);
        Self { stall, count }
    }

    /// Waits to find out whether the link is only late: the runtime in which its completions are polled may have been
    /// blocked, and the completions of that time are polled within this wait. Returns true if the link is dead.
    /// Fails if the stream cannot have a new link.
    async fn is_dead(self, progress: &DataProgress) -> Result<bool, Fault> {
        // A wait that took longer was blocked as well, and its timer may run before the completions are polled.
        loop {
            let began = tokio::time::Instant::now();
            sleep(COMPLETION_DELAY_LIMIT).await;
            if began.elapsed() < COMPLETION_DELAY_LIMIT + COMPLETION_DELAY_LIMIT / 4 {
                break;
            }
        }
        match self.stall {
            _ if count_of(self.stall, progress) != self.count => Ok(false),
            Stall::Arrivals { .. } => Ok(true),
            // The memory of a write belongs to the device until the write completes, so the frame cannot be sent again.
            Stall::Completions { .. } => Err(self.stall.into()),
        }
    }
}

fn count_of(stall: Stall, progress: &DataProgress) -> u64 {
    match stall {
        Stall::Arrivals { .. } => progress.received(),
        Stall::Completions { .. } => progress.sent(),
    }
}

/// The links of a stream, as the watch over the data path asks them about counts that stand still.
pub(crate) struct LinkStalls(Vec<Weak<RenewalShared>>);

impl LinkStalls {
    /// Answers for the links that these renewals replace.
    pub(crate) fn new<'a>(renewals: impl IntoIterator<Item = &'a Arc<RenewalShared>>) -> Self {
        Self(renewals.into_iter().map(Arc::downgrade).collect())
    }
}

impl StalledPath for LinkStalls {
    /// Leaves the decision to the renewals, which run in the runtimes in which the completions are polled. The counts
    /// do not tell which rail stands still, so that all of them are asked.
    fn stalled(&self, stall: Stall) -> Result<(), Fault> {
        for renewal in self.0.iter().filter_map(Weak::upgrade) {
            if !renewal.is_underway() {
                renewal.request_for(stall);
            }
        }
        Ok(())
    }
}

/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the hardware retries before a write fails, with the limits of [`link`](crate::transport::rdma::link), how
/// long its completion may be missed, and a little more.
const LOSS_LIMIT: Duration = COMPLETION_LIMIT.saturating_add(Duration::from_secs(5));

/// How long a frame may be unreported that the peer's device has seen delivered. It is in its slot, and is verified
/// like any other, so nothing is lost by looking there too early.
const UNREPORTED: Duration = Duration::from_millis(50);

/// The steps of a renewal, in order. The order of the variants is the wire format.
#[derive(Serialize, Deserialize)]
enum RenewalStep {
    /// This end writes no more frames over the old link, after this number.
    Begin {
        frames: u64,
    },
    Open {
        part: LinkOffer,
        verified: u64,
    },
    /// The new queue pair is connected.
    Connected,
    /// Frames of this end need the receive pool of the peer.
    Pool,
    /// The receive pool, for which the peer has asked.
    Slots(Vec<SlotToken>),
}

/// A step of the peer, as it arrived.
type PeerStep = Result<Vec<u8>, String>;

/// Renews the link of one stream while the stream lasts.
pub(crate) struct Renewer {
    shared: Arc<Shared<Rdma>>,
    renewal: Arc<RenewalShared>,
    plan: LinkPlan,
    /// How long the stream may be without a working link.
    patience: Duration,
    /// The time since which no frame has got through.
    stuck_since: Option<Instant>,
    /// The bytes that had arrived at both ends when the last link was lost.
    arrived: u64,
    generation: u32,
}

impl Renewer {
    /// A task that has not renewed a link yet.
    pub(crate) fn new(
        shared: Arc<Shared<Rdma>>,
        renewal: Arc<RenewalShared>,
        plan: LinkPlan,
        patience: Duration,
    ) -> Self {
        Self {
            shared,
            renewal,
            plan,
            patience,
            stuck_since: None,
            arrived: 0,
            generation: 0,
        }
    }

    /// Serves the stream until its control task has ended.
    pub(crate) async fn serve(mut self) {
        let state = self.shared.state.clone();
        let renewal = Arc::clone(&self.renewal);
        tokio::select! {
            () = state.ended.cancelled() => {}
            fault = self.watch() => state.fail(StreamFault::Found(fault)),
            never = renewal.nudge() => match never {},
        }
        renewal.nudges.set(None);
    }

    /// Renews the link whenever one end requests it. Returns the fault that no new link can repair.
    async fn watch(&mut self) -> Fault {
        match self.serve_requests().await {
            Ok(never) => match never {},
            Err(fault) => fault,
        }
    }

    async fn serve_requests(&mut self) -> Result<Infallible, Fault> {
        loop {
            let state = self.shared.state.clone();
            tokio::select! {
                () = self.renewal.requested.notified() => {}
                () = state.stepped() => {}
            }
            if self.renewal.needs_pools.swap(false, Ordering::AcqRel) {
                self.ask_for_pools().await;
            }
            let theirs = self.next_but_pools().await?;
            let mut reason = self.renewal.take_reason();
            if let (None, Some(RenewalReason::Silent(link))) = (&theirs, &reason) {
                if !link.is_dead(self.renewal.data()).await? {
                    reason = None;
                }
            }
            // A stream that has ended needs no new link, unless the peer requests one.
            if theirs.is_none() && (reason.is_none() || !state.is_open()) {
                continue;
            }
            self.renew(theirs, reason).await?;
        }
    }

    async fn renew(
        &mut self,
        theirs: Option<PeerStep>,
        reason: Option<RenewalReason>,
    ) -> Result<(), Fault> {
        let began = Instant::now();
        let mut lost = reason.as_ref().and_then(RenewalReason::lost);
        self.note_progress(reason)?;
        self.generation += 1;
        self.stop_posting().await?;
        let theirs = match theirs {
            Some(step) => step,
            None => self.first_step().await?,
        };
        let Ok(RenewalStep::Begin { frames }) = theirs.and_then(|step| decode(&step)) else {
            return Err(Fault::Protocol("a renewal that does not begin"));
        };
        // All credits for the peer's old pool have arrived before its step.
        self.shared.state.pause();
        self.drain_old_link(frames).await?;
        self.take_down(frames);
        // The old link may have failed since.
        let later = self.renewal.take_reason();
        lost = lost.or(later.as_ref().and_then(RenewalReason::lost));
        let (live, verified) = self.reconnect(lost).await?;
        self.install(live, verified);
        let renewed_in_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(renewed_in_us, "the link is a new one");
        Ok(())
    }

    /// Fails if links are lost one after the other for too long, and no frame gets through.
    fn note_progress(&mut self, reason: Option<RenewalReason>) -> Result<(), Fault> {
        let arrived = self.renewal.data().arrived_at_both();
        let has_moved = std::mem::replace(&mut self.arrived, arrived) < arrived;
        self.renewal
            .completions_with_nudges
            .store(0, Ordering::Relaxed);
        let progress = self.renewal.completions.swap(0, Ordering::Relaxed) > 0 || has_moved;
        if progress {
            self.stuck_since = None;
        }
        let error = match reason {
            Some(RenewalReason::Lost(error)) => error,
            Some(RenewalReason::Silent(link)) => link.stall.into(),
            Some(RenewalReason::Used) | None => return Ok(()),
        };
        tracing::debug!(%error, "the link is lost");
        if self.stuck_since.get_or_insert_with(Instant::now).elapsed() > self.patience {
            return Err(Fault::Data(Arc::new(error)));
        }
        Ok(())
    }

    /// Stops posting and granting, waits until no write is in flight, and sends `Begin`.
    async fn stop_posting(&self) -> Result<(), Fault> {
        let Shared {
            state,
            sender,
            receiver,
            ..
        } = &*self.shared;
        self.renewal.is_underway.store(true, Ordering::Release);
        state.pause();
        if let Some(receiver) = receiver {
            // A grant that has begun is finished when the receiver is unlocked.
            drop(receiver.lock());
        }
        let mut frames = 0;
        if let Some(sender) = sender {
            self.wait_until_quiet(sender).await?;
            state.wake_sender();
            frames = sender.lock().path().written();
        }
        // After this step the peer may destroy its queue pair, and a nudge would break this one.
        self.renewal.nudges.set(None);
        state.send_step(Ok(encode(&RenewalStep::Begin { frames })));
        Ok(())
    }

    /// Waits until no write is in flight. Each write completes or fails within [`LOSS_LIMIT`], unless the link is slow.
    async fn wait_until_quiet(&self, sender: &SharedSender<RdmaSend>) -> Result<(), Fault> {
        let limit = self.patience.max(LOSS_LIMIT);
        let mut timer = pin!(sleep(limit));
        let mut seen = 0;
        poll_fn(|cx| {
            // Registered before polling: a work request wakes only the task that polled it last, which may
            // be the user's.
            self.renewal.progress.register(cx.waker());
            let mut sender = sender.lock();
            let path = sender.path();
            if path.poll_quiet(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            if path.written() != seen {
                seen = path.written();
                timer.as_mut().reset(tokio::time::Instant::now() + limit);
            }
            ready!(timer.as_mut().poll(cx));
            let text = format!("this end's device has not completed a write for {limit:.1?}");
            Poll::Ready(Err(Fault::Data(Arc::new(io::Error::other(text)))))
        })
        .await
    }

    /// Receives the peer's next step, within a time limit.
    async fn next_step(&self) -> Result<PeerStep, Fault> {
        let state = &self.shared.state;
        let waiting = async {
            loop {
                if let Some(step) = state.take_step() {
                    return step;
                }
                state.stepped().await;
            }
        };
        let limit = self.patience + LOSS_LIMIT;
        timeout(limit, waiting)
            .await
            .map_err(|_| Fault::PeerSilent(limit))
    }

    /// Receives the step with which the peer begins. A step about pools that it sent before is about those of the old
    /// link, and says which pools the new one needs.
    async fn first_step(&mut self) -> Result<PeerStep, Fault> {
        loop {
            let step = self.next_step().await?;
            match step.as_deref().map(decode) {
                Ok(Ok(RenewalStep::Pool)) => self.expect_frames()?,
                Ok(Ok(RenewalStep::Slots(_))) => {}
                _ => return Ok(step),
            }
        }
    }

    /// Takes the frames of the old link, until it has taken `frames` of them: this device has acknowledged that many.
    async fn drain_old_link(&self, frames: u64) -> Result<(), Fault> {
        let Shared {
            state, receiver, ..
        } = &*self.shared;
        let Some(receiver) = receiver else {
            return Ok(());
        };
        let lost_chunk = || io::Error::other("a chunk that had arrived was lost with its link");
        let mut timer = pin!(sleep(UNREPORTED));
        let mut seen = 0;
        let result = poll_fn(|cx| {
            self.renewal.progress.register(cx.waker());
            let mut receiver = receiver.lock();
            receiver.take_all(state, cx);
            if !state.receives() {
                // The reader has stopped.
                return Poll::Ready(Ok(()));
            }
            let path = receiver.path();
            if path.arrived() != seen {
                seen = path.arrived();
                timer
                    .as_mut()
                    .reset(tokio::time::Instant::now() + UNREPORTED);
            }
            if path.arrived() < frames && !path.is_broken() {
                ready!(timer.as_mut().poll(cx));
                path.assume_arrived(frames);
                receiver.take_unreported(state, cx);
            }
            let path = receiver.path();
            Poll::Ready(if path.arrived() >= frames {
                Ok(())
            } else {
                Err(Fault::Data(Arc::new(lost_chunk())))
            })
        })
        .await;
        state.wake_receiver();
        result
    }

    /// Destroys the old link, and then its pools. Each side of the data path has the link, so both sides are taken down
    /// before chunks that are kept leave its memory.
    fn take_down(&self, frames: u64) {
        let Shared {
            sender, receiver, ..
        } = &*self.shared;
        if let Some(sender) = sender {
            sender.lock().path().take_down();
        }
        if let Some(receiver) = receiver {
            let mut receiver = receiver.lock();
            let (path, unread) = receiver.path_and_kept();
            path.take_down(frames);
            unread.for_each(RdmaSlot::unpin);
        }
        if let Some(sender) = sender {
            sender.lock().path_and_kept().1.for_each(RdmaSlot::unpin);
            sender.leave_pool(RdmaSlot::unpin);
        }
        if let Some(receiver) = receiver {
            receiver.leave_pool(RdmaSlot::unpin);
        }
    }

    /// Makes the new link, and tries again until it is connected or the time limit has passed. `lost` is the reason why
    /// the old link was lost.
    async fn reconnect(&mut self, lost: Option<String>) -> Result<(LiveLink, u64), Fault> {
        let before = self.plan.ports().name.clone();
        let mut refusal = lost.filter(|_| self.plan.has_other_ports());
        loop {
            let reason = match self.connect_once(refusal.take()).await? {
                Ok(connected) => {
                    self.plan.report_move(&before);
                    return Ok(connected);
                }
                Err(reason) => reason,
            };
            self.plan.turn_ports();
            tracing::debug!(%reason, "no new link yet");
            let since = self.stuck_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.patience {
                let text = format!("the link was lost, and there is no new one: {reason}");
                return Err(Fault::Data(Arc::new(io::Error::other(text))));
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns the number of bytes that have arrived at this end and been verified.
    fn verified_here(&self) -> u64 {
        let receiver = self.shared.receiver.as_ref();
        receiver.map_or(0, |receiver| receiver.lock().verified())
    }

    /// Returns true unless one express path after the other carried nothing for this end.
    fn trusts_express(&self) -> bool {
        let sender = self.shared.sender.as_ref();
        sender.is_none_or(|sender| sender.lock().path().trusts_express())
    }

    /// Tries once to make the new link, unless `refusal` says why this end does not. Both ends know the inner error.
    async fn connect_once(
        &self,
        refusal: Option<String>,
    ) -> Result<Result<(LiveLink, u64), String>, Fault> {
        let state = &self.shared.state;
        let opening = match refusal {
            Some(reason) => Err(reason),
            None => self.plan.open(self.generation, self.trusts_express()),
        };
        let verified = self.verified_here();
        let step = |opening: &UnconnectedLink| {
            let part = opening.part();
            encode(&RenewalStep::Open { part, verified })
        };
        state.send_step(opening.as_ref().map(step).map_err(Clone::clone));
        let theirs = self.next_step().await?;
        let (opening, theirs) = match (opening, theirs) {
            (Ok(opening), Ok(theirs)) => (opening, theirs),
            (Err(reason), _) | (_, Err(reason)) => return Ok(Err(reason)),
        };
        let Ok(RenewalStep::Open { part, verified }) = decode(&theirs) else {
            return Err(Fault::Protocol("a renewal that does not open"));
        };
        let Ok(peer_slots) = part.peer_slots() else {
            return Err(Fault::Protocol(
                "a link whose list of slots is too long or incomplete",
            ));
        };
        // The peer grants the new pool after it has received Connected.
        state.set_peer_slots(peer_slots);
        let connected = opening.connect(part).await;
        let step = |_: &ConnectedLink| encode(&RenewalStep::Connected);
        state.send_step(connected.as_ref().map(step).map_err(Clone::clone));
        let theirs = self.next_step().await?;
        Ok(match (connected, theirs) {
            (Ok(connected), Ok(_)) => Ok((connected.into_live(), verified)),
            (Err(reason), _) | (_, Err(reason)) => Err(reason),
        })
    }

    /// Continues over the new link.
    fn install(&self, live: LiveLink, verified: u64) {
        let Shared {
            state,
            sender,
            receiver,
            ..
        } = &*self.shared;
        self.renewal.nudges.set(Some(live.nudge));
        let has_peer_slots = |live: &SendLink| !live.peer().slots.is_empty();
        let may_take_credits = live.send.as_ref().is_some_and(has_peer_slots);
        if let (Some(sender), Some(live)) = (sender, live.send) {
            let mut sender = sender.lock();
            sender.path().install(live, self.generation, verified);
        }
        if let (Some(receiver), Some(live)) = (receiver, live.receive) {
            let mut receiver = receiver.lock();
            let has_lost_express = receiver.path().install(live, self.generation);
            receiver.restart(state, has_lost_express);
            // Under the lock: the restart grants the slots that were released before; later releases grant their own.
            self.renewal.is_underway.store(false, Ordering::Release);
        }
        // A stream that only sends is not granted anything.
        self.renewal.is_underway.store(false, Ordering::Release);
        if let Some(sender) = sender {
            // While the renewal was underway a failure of the new express path requested nothing.
            if sender.lock().path().has_lost_express() {
                self.renewal
                    .request(Some(io::Error::other("the new express path failed")));
            }
        }
        if may_take_credits {
            state.resume();
        }
        // The steward too: only it drives a half that its user does not poll.
        state.wake_all();
    }
}

/// Pools that are registered while the link is in use.
impl Renewer {
    /// Registers the pools of which a frame of this end needs slots: the own one, and that of the peer.
    async fn ask_for_pools(&mut self) {
        let Some(sender) = &self.shared.sender else {
            return;
        };
        let missing = sender.lock().path().ask_for_pools();
        let Some((link, [own, peer])) = missing else {
            return;
        };
        if peer {
            let step = Ok(encode(&RenewalStep::Pool));
            self.shared.state.send_step(step);
        }
        if own {
            self.plan.first_pools.send = true;
            if let Some(slots) = self.register(link, MemoryAccess::Local).await {
                sender.lock().path().add_pool(slots);
                self.shared.state.wake_all();
            }
        }
    }

    /// Handles the steps of the peer about pools, and returns the one behind them.
    async fn next_but_pools(&mut self) -> Result<Option<PeerStep>, Fault> {
        while let Some(step) = self.shared.state.take_step() {
            match step.as_deref().map(decode) {
                Ok(Ok(RenewalStep::Pool)) => self.give_slots().await?,
                Ok(Ok(RenewalStep::Slots(slots))) => self.take_slots(slots)?,
                _ => return Ok(Some(step)),
            }
        }
        Ok(None)
    }

    /// Notes that the peer needs slots of this end from now on.
    fn expect_frames(&mut self) -> Result<(), Fault> {
        if self.shared.receiver.is_none() {
            return Err(Fault::Protocol(
                "a request for the receive pool of an end that only sends",
            ));
        }
        self.plan.first_pools.receive = true;
        Ok(())
    }

    /// Registers the receive pool for the peer.
    async fn give_slots(&mut self) -> Result<(), Fault> {
        self.expect_frames()?;
        let Some(receiver) = &self.shared.receiver else {
            return Ok(());
        };
        let Some(link) = receiver.lock().path().without_pool() else {
            return Err(Fault::Protocol("a second request for the receive pool"));
        };
        if let Some(slots) = self.register(link, MemoryAccess::Remote).await {
            let tokens = slots.iter().filter_map(RdmaSlot::token).collect();
            receiver.lock().path().add_pool(slots);
            let state = &self.shared.state;
            state.send_step(Ok(encode(&RenewalStep::Slots(tokens))));
            receiver.grant_all(state);
        }
        Ok(())
    }

    /// Writes into these slots of the peer from now on.
    fn take_slots(&self, slots: Vec<SlotToken>) -> Result<(), Fault> {
        let sender = self.shared.sender.as_ref();
        if !sender.is_some_and(|sender| sender.lock().path().add_peer_slots(slots)) {
            return Err(Fault::Protocol("slots that this end did not ask for"));
        }
        self.shared.state.resume();
        self.shared.state.wake_all();
        Ok(())
    }

    /// Registers a pool, in a two-way stream on a thread of its own: the small messages of the other direction go on
    /// meanwhile. If that fails, the link is replaced.
    async fn register(&self, link: Link, reach: MemoryAccess) -> Option<Vec<RdmaSlot>> {
        let (pool, generation, faults) = (self.plan.pool, self.generation, self.plan.faults);
        let work = move || {
            if faults.loses_pools() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            pool.register(link.owner(), reach, generation)
        };
        let slots = if self.plan.direction == Direction::Both {
            threads::blocking(work).await.unwrap_or_else(Err)
        } else {
            work()
        };
        let failed = |error: io::Error| {
            let device = &self.plan.ports().queue_pair.device;
            let text = format!("cannot register memory with {device}: {error}");
            self.renewal.request(Some(io::Error::other(text)));
        };
        slots.map_err(failed).ok()
    }
}
