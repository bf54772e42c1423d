//! Replaces the link of a stream by a new one, unnoticed by both users.
//!
//! Two things make it necessary: async-rdma leaves kernel memory behind with every completion, until
//! its completion queue is destroyed; and a link can fail while both ends live. Either end may begin.
//! The steps travel on the control connection, in lockstep:
//!
//! ```text
//!   credits are set aside; writes in flight complete, or fail
//!   Begin {frames written}      ◄──────────►
//!   everything that was written is taken from the old link; what failed is kept; the old link and its
//!   pools are taken down (chunks that the reader has not had move to ordinary memory)
//!   Open {endpoint, slots, bytes verified}  ◄──────────►     again and again while a way is closed
//!   Connected                   ◄──────────►
//!   what failed is written once more, unless it had arrived after all; all slots are granted
//! ```
//!
//! Nobody waits for a user: a reader that does not read, or a writer that does not write, holds
//! nothing up.

use std::{
    future::poll_fn,
    io,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::request::{Renewal, RenewalReason};
use crate::{
    Fault,
    transport::{
        control::state::Failure,
        data::{renewal::Renewable, shared::Shared},
        rdma::{
            Rdma,
            link_setup::{ConnectedLink, LinkOffer, LinkPlan, UnconnectedLink},
            pool::RdmaSlot,
            receive_path, send_path,
            steps::{decode, encode},
        },
    },
};

/// Pause before a way that was closed is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the hardware goes on trying before a write fails, with the time limits of
/// [`link`](crate::transport::rdma::link), and a little more.
const LOSS_LIMIT: Duration = Duration::from_secs(5);

/// What two ends tell each other, in this order.
#[derive(Serialize, Deserialize)]
enum RenewalStep {
    /// Nothing more will be written over the old link, over which so many frames went.
    Begin { frames: u64 },
    /// A new queue pair, and what has been received so far in bytes.
    Open { part: LinkOffer, verified: u64 },
    /// It is connected.
    Connected,
}

/// Renews the link of one stream for as long as it lasts.
pub(crate) struct Renewer {
    shared: Arc<Shared<Rdma>>,
    renewal: Arc<Renewal>,
    plan: LinkPlan,
    /// How long a link may stay lost.
    patience: Duration,
    /// Since when nothing has got through.
    stuck_since: Option<Instant>,
    generation: u32,
}

impl Renewer {
    /// A renewer that has not renewed anything yet.
    pub(crate) fn new(
        shared: Arc<Shared<Rdma>>,
        renewal: Arc<Renewal>,
        plan: LinkPlan,
        patience: Duration,
    ) -> Self {
        Self {
            shared,
            renewal,
            plan,
            patience,
            stuck_since: None,
            generation: 0,
        }
    }

    /// Serves the stream until its control task has ended.
    pub(crate) async fn serve(mut self) {
        let state = Arc::clone(&self.shared.state);
        tokio::select! {
            () = state.ended.cancelled() => {}
            fault = self.watch() => state.fail(Failure::Fault(fault)),
        }
    }

    /// Renews the link whenever one end wants it. Returns what no new link can mend.
    async fn watch(&mut self) -> Fault {
        loop {
            let state = &self.shared.state;
            tokio::select! {
                () = self.renewal.wanted.notified() => {}
                () = state.stepped.notified() => {}
            }
            let theirs = state.take_step();
            let reason = self.renewal.take_reason();
            // Towards its end a stream needs no new link, unless the peer asks for one.
            if theirs.is_none() && (reason.is_none() || !state.is_open()) {
                continue;
            }
            if let Err(fault) = self.renew(theirs, reason).await {
                return fault;
            }
        }
    }

    async fn renew(
        &mut self,
        theirs: Option<Result<Vec<u8>, String>>,
        reason: Option<RenewalReason>,
    ) -> Result<(), Fault> {
        let began = Instant::now();
        self.note_progress(reason)?;
        self.generation += 1;
        self.stop_posting().await;
        let theirs = match theirs {
            Some(step) => step,
            None => self.next_step().await?,
        };
        let Ok(RenewalStep::Begin { frames }) = theirs.and_then(|step| decode(&step)) else {
            return Err(Fault::Protocol("a renewal that does not begin"));
        };
        // Everything that the peer had granted of its old pool has come by now.
        self.shared.state.pause();
        self.drain_old_link(frames).await?;
        self.take_down();
        let (ends, verified) = self.reconnect().await?;
        self.install(ends, verified);
        let renewed_in_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(renewed_in_us, "the link is a new one");
        Ok(())
    }

    /// Fails when links have been lost one after the other for too long, with nothing getting through.
    fn note_progress(&mut self, reason: Option<RenewalReason>) -> Result<(), Fault> {
        let progress = self.renewal.completions.swap(0, Ordering::Relaxed) > 0;
        let Some(RenewalReason::Lost(error)) = reason else {
            return Ok(());
        };
        tracing::debug!(%error, "the link is lost");
        if progress {
            self.stuck_since = None;
        }
        if self.stuck_since.get_or_insert_with(Instant::now).elapsed() > self.patience {
            return Err(Fault::Data(Arc::new(error)));
        }
        Ok(())
    }

    /// Stops writing and granting, waits for what is in flight, and says so.
    async fn stop_posting(&self) {
        let Shared {
            state,
            send_lane,
            recv_lane,
            ..
        } = &*self.shared;
        self.renewal.is_underway.store(true, Ordering::Release);
        state.pause();
        if let Some(recv_lane) = recv_lane {
            // Whoever is granting right now has finished when the lane is free.
            drop(recv_lane.lock());
        }
        let mut frames = 0;
        if let Some(send_lane) = send_lane {
            poll_fn(|cx| {
                // Before looking: an operation tells only the one who polled it last, and that may
                // be the user.
                self.renewal.progress.register(cx.waker());
                send_lane.lock().path_and_kept().0.poll_quiet(cx)
            })
            .await;
            state.wake_sender();
            frames = send_lane.lock().path_and_kept().0.written();
        }
        state.send_step(Ok(encode(&RenewalStep::Begin { frames })));
    }

    /// The peer's next step, which it must take in time.
    async fn next_step(&self) -> Result<Result<Vec<u8>, String>, Fault> {
        let state = &self.shared.state;
        let waiting = async {
            loop {
                if let Some(step) = state.take_step() {
                    return step;
                }
                state.stepped.notified().await;
            }
        };
        let limit = self.patience + LOSS_LIMIT;
        timeout(limit, waiting)
            .await
            .map_err(|_| Fault::PeerSilent(limit))
    }

    /// Takes `frames` frames off the old link, which the peer's device says are all here.
    async fn drain_old_link(&self, frames: u64) -> Result<(), Fault> {
        let Shared {
            state, recv_lane, ..
        } = &*self.shared;
        let Some(recv_lane) = recv_lane else {
            return Ok(());
        };
        let lost_chunk = || io::Error::other("a chunk that had arrived was lost with its link");
        let result = poll_fn(|cx| {
            self.renewal.progress.register(cx.waker());
            let mut lane = recv_lane.lock();
            lane.take_all(state, cx);
            if !state.receives() {
                // Nobody wants it any more.
                return Poll::Ready(Ok(()));
            }
            let (path, _) = lane.path_and_kept();
            match path.arrived() >= frames {
                true => Poll::Ready(Ok(())),
                false if path.is_broken() => Poll::Ready(Err(Fault::Data(Arc::new(lost_chunk())))),
                false => Poll::Pending,
            }
        })
        .await;
        state.wake_receiver();
        result
    }

    /// Destroys the old link and its pools.
    fn take_down(&self) {
        let Shared {
            send_lane,
            recv_lane,
            ..
        } = &*self.shared;
        if let Some(send_lane) = send_lane {
            let mut lane = send_lane.lock();
            let (path, unsent) = lane.path_and_kept();
            unsent.for_each(RdmaSlot::unpin);
            path.take_down();
        }
        if let Some(recv_lane) = recv_lane {
            let mut lane = recv_lane.lock();
            let (path, unread) = lane.path_and_kept();
            unread.for_each(RdmaSlot::unpin);
            path.take_down();
        }
    }

    /// Makes the new link, with the peer, however often it takes.
    async fn reconnect(&mut self) -> Result<(LinkPair, u64), Fault> {
        loop {
            let reason = match self.connect_once().await? {
                Ok(connected) => return Ok(connected),
                Err(reason) => reason,
            };
            tracing::debug!(%reason, "no new link yet");
            let since = self.stuck_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.patience {
                let text = format!("the link was lost, and there is no new one: {reason}");
                return Err(Fault::Data(Arc::new(io::Error::other(text))));
            }
            sleep(PAUSE).await;
        }
    }

    /// One attempt, whose failure both ends know.
    async fn connect_once(&self) -> Result<Result<(LinkPair, u64), String>, Fault> {
        let Shared {
            state, recv_lane, ..
        } = &*self.shared;
        let opening = self.plan.open(self.generation);
        let verified = recv_lane
            .as_ref()
            .map_or(0, |recv_lane| recv_lane.lock().verified());
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
        let connected = opening.connect(part).await;
        let step = |_: &ConnectedLink| encode(&RenewalStep::Connected);
        state.send_step(connected.as_ref().map(step).map_err(Clone::clone));
        let theirs = self.next_step().await?;
        Ok(match (connected, theirs) {
            (Ok(connected), Ok(_)) => Ok((connected.into_links(), verified)),
            (Err(reason), _) | (_, Err(reason)) => Err(reason),
        })
    }

    /// Goes on over the new link.
    fn install(&self, (send, receive): LinkPair, verified: u64) {
        let Shared {
            state,
            send_lane,
            recv_lane,
            ..
        } = &*self.shared;
        if let (Some(send_lane), Some(live)) = (send_lane, send) {
            let mut lane = send_lane.lock();
            lane.path_and_kept()
                .0
                .install(live, self.generation, verified);
        }
        if let (Some(recv_lane), Some(live)) = (recv_lane, receive) {
            let mut lane = recv_lane.lock();
            lane.path_and_kept().0.install(live, self.generation);
            lane.restart(state);
            // Under the lock: what was given back before is granted by the restart, what comes later by itself.
            self.renewal.is_underway.store(false, Ordering::Release);
        }
        state.resume();
        // The steward too: a half that its user leaves alone has nobody else to look at the new link.
        state.wake_all();
    }
}

/// Both sides of a new link.
type LinkPair = (
    Option<send_path::SendLink>,
    Option<receive_path::ReceiveLink>,
);
