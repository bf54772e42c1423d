//! From two ends' ports to a queue pair that a frame has crossed.
//!
//! | file | what it has |
//! |---|---|
//! | [`local_ports`] | this end's ports and pool; tries the proposed pairs one after the other |
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {offer}               ───────────►
//!                               ◄───────────   Welcome {proposal}: the best pairs, sequence numbers
//!   Step: endpoint, slots, lane ◄──────────►   Step: endpoint, slots, lane
//!   Step: connected             ◄──────────►   Step: connected
//!                 one frame each way that bytes will travel
//!   Step: it arrived            ◄──────────►   Step: it arrived
//! ```
//!
//! Either end may send, in place of a step, the reason why it cannot continue. Then both ends try the next pair that
//! was proposed, from its first step. After the last pair both use TCP, or both fail.
//!
//! # The proof
//!
//! A queue pair connects without sending a packet, so a connected queue pair proves nothing about VLANs, firewalls or
//! switches. Before either end trusts it, one frame of one byte crosses it in each direction that will carry data. Its
//! receive is posted before either end has said `connected`. All pairs together have one limit of time, shared evenly:
//! a user who falls back to TCP would notice more.
//!
//! Two rules keep a busy host from looking like a broken network. The limit counts the time in which the process runs:
//! a step that ends late counts as one, and after a pause of half the limit it begins again. And an acceptor proves a
//! few streams at a time, each for a limited time before the next may begin.

mod local_ports;

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{SinkExt, StreamExt};
use tokio::{sync::Semaphore, time::timeout};

use super::link_setup::{decode, encode};
use super::renewal::{LinkStalls, RenewalShared};
use crate::{
    HandshakeFault,
    host::host_name,
    running_time::within_running_time,
    transport::{
        control::{
            connection::{Control, closed},
            message::Message,
            state::State,
        },
        data::shared::Shared,
        rdma::{
            Rdma,
            link_setup::{ConnectedLink, LinkOffer, LinkPlan, LiveLink},
            nudge::Nudge,
            receive_path::{self, RdmaReceive},
            renewal::renewer::Renewer,
            send_path::{self, RdmaSend},
        },
    },
};

pub(crate) use local_ports::LocalPorts;

/// The time limit for all queue pairs that are tried, from connecting to a frame that has crossed. Milliseconds are
/// usual. A user whose stream falls back to TCP waits for all of it. Half of it is enough for the loss of one packet,
/// which is sent again after 0.54 s; a third is not, but then there is another pair.
const PROOF_LIMIT: Duration = Duration::from_millis(1500);

/// The rest of the time in which a queue pair must be proved.
struct ProofBudget {
    left: Duration,
    /// The number of pairs of ports that share the rest.
    share: u32,
}

impl ProofBudget {
    fn new() -> Self {
        Self {
            left: PROOF_LIMIT,
            share: 1,
        }
    }

    /// Runs `work` within the share of one pair of ports. An error names the host and the port.
    async fn within<T>(
        &mut self,
        plan: &LinkPlan,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let (began, limit) = (Instant::now(), self.left / self.share);
        let LinkPlan { name, remedy, .. } = plan;
        let late = || {
            let seconds = limit.as_secs_f32();
            let text = format!("nothing crossed the queue pair within {seconds:.1} s ({remedy})");
            Err(text)
        };
        let result = within_running_time(limit, work).await.unwrap_or_else(late);
        self.left = self.left.saturating_sub(began.elapsed().min(limit));
        result.map_err(|reason| with_host_name(&format!("{name}: {reason}")))
    }
}

/// Makes one queue pair and proves it, in steps with the peer. The inner error is the reason why it failed; both ends
/// know it.
async fn attempt(
    control: &mut Control,
    plan: Result<LinkPlan, String>,
    budget: &mut ProofBudget,
) -> Result<Result<(LinkPlan, ConnectedLink), String>, HandshakeFault> {
    let opened = plan.and_then(|plan| Ok((plan.open(0, true)?, plan)));
    let opened = opened.map_err(|reason| with_host_name(&reason));
    let part = opened.as_ref().map(|(opening, _)| encode(&opening.part()));
    let theirs = exchange(control, part.map_err(Clone::clone)).await?;
    let ((opening, plan), theirs) = match (opened, theirs) {
        (Ok(opened), Ok(theirs)) => (opened, theirs),
        (Err(reason), _) | (Ok(_), Err(reason)) => return Ok(Err(reason)),
    };
    let malformed = |_| HandshakeFault::Protocol("a queue pair that cannot be decoded");
    let theirs: LinkOffer = decode(&theirs).map_err(malformed)?;
    let connected = budget.within(&plan, opening.connect(theirs)).await;
    let expected = connected
        .as_ref()
        .ok()
        .and_then(ConnectedLink::expect_proof);
    let step = connected.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
    let theirs = exchange(control, step).await?;
    let mut connected = match (connected, theirs) {
        (Ok(connected), Ok(_)) => connected,
        (Err(reason), _) | (Ok(_), Err(reason)) => return Ok(Err(reason)),
    };
    let proof = budget.within(&plan, connected.prove(expected)).await;
    let step = proof.as_ref().map(|()| Vec::new()).map_err(Clone::clone);
    let theirs = exchange(control, step).await?;
    Ok(proof.and(theirs).map(|_| (plan, connected)))
}

/// Puts the name of this host before a reason, which is reported on both hosts.
fn with_host_name(reason: &str) -> String {
    format!("{}: {reason}", host_name())
}

/// Sends this end's part of a step, and receives the peer's.
async fn exchange(
    control: &mut Control,
    ours: Result<Vec<u8>, String>,
) -> Result<Result<Vec<u8>, String>, HandshakeFault> {
    control.send(Message::Step(ours)).await?;
    match control.next().await.ok_or_else(closed)?? {
        Message::Step(theirs) => Ok(theirs),
        Message::Abort { reason, .. } => Err(HandshakeFault::Refused(reason)),
        _ => Err(HandshakeFault::Protocol(
            "a message in the middle of a step",
        )),
    }
}

/// A proved link, from which the two sides of the data path are made.
pub(crate) struct Established {
    /// `None` in a stream that only receives.
    send: Option<send_path::SendLink>,
    /// `None` in a stream that only sends.
    receive: Option<receive_path::ReceiveLink>,
    nudge: Option<Nudge>,
    plan: LinkPlan,
    renewal: Option<Arc<RenewalShared>>,
    name: String,
    smaller_pool_reason: Option<String>,
}

impl Established {
    /// Wraps a proved link. `first_failure` is the reason why the pair of ports that was tried first does not work, if
    /// another one is used. `smaller_pool_reason` is the reason why the pool is smaller than requested, if it is.
    fn new(
        plan: LinkPlan,
        connected: ConnectedLink,
        first_failure: Option<&String>,
        smaller_pool_reason: Option<String>,
    ) -> Self {
        let LiveLink {
            nudge,
            send,
            receive,
        } = connected.into_live();
        let mut name = plan.name.clone();
        if let Some(reason) = first_failure {
            name = format!("{name}; first tried: {reason}");
        }
        Self {
            send,
            receive,
            nudge: Some(nudge),
            plan,
            renewal: None,
            name,
            smaller_pool_reason,
        }
    }

    /// Returns the name of the link for the user: device, port, GID and MTU, and why no better pair of ports is used.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// Returns the reason why the pool is smaller than requested, if it is.
    pub(crate) fn smaller_pool_reason(&self) -> Option<String> {
        self.smaller_pool_reason.clone()
    }

    /// Returns the payload of a chunk, in bytes.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.plan.chunk_bytes
    }

    /// Returns the number of slots of the receive pool.
    pub(crate) fn depth(&self) -> u32 {
        self.plan.depth
    }

    /// Returns the number of slots of the peer's receive pool; 0 in a stream that only receives.
    pub(crate) fn peer_slots(&self) -> usize {
        self.send
            .as_ref()
            .map_or(0, send_path::SendLink::peer_slots)
    }

    /// Makes the two sides of the data path, for the stream whose state is `state`.
    pub(crate) fn paths(&mut self, state: &Arc<State>) -> (Option<RdmaSend>, Option<RdmaReceive>) {
        let renewal = self.renewal(state);
        state.data.set_path(LinkStalls::new(&renewal));
        renewal.nudges.set(self.nudge.take());
        let send = self.send.take();
        let send = send.map(|live| RdmaSend::new(live, Arc::clone(&renewal)));
        let receive = self.receive.take();
        (send, receive.map(|live| RdmaReceive::new(live, renewal)))
    }

    fn renewal(&mut self, state: &Arc<State>) -> Arc<RenewalShared> {
        let limit = self.plan.renew_after;
        let fresh = || Arc::new(RenewalShared::new(Arc::clone(state), limit));
        Arc::clone(self.renewal.get_or_insert_with(fresh))
    }

    /// Replaces the link when that is needed, for as long as the stream lasts. Fails the stream when a link
    /// is lost and no new one can be made for `patience`.
    pub(crate) async fn renew(mut self, shared: Arc<Shared<Rdma>>, patience: Duration) {
        let renewal = self.renewal(&shared.state);
        let renewer = Renewer::new(shared, renewal, self.plan, patience);
        renewer.serve().await;
    }
}

/// The most streams of this process that are accepted over RDMA and proved at once. All queue pairs of a crowd would
/// share the processors, and each would take longer than its time limit: with 120 clients on an emulated processor, 33
/// of them found that nothing crossed. A dialer's time limit begins when the acceptor has begun, so only acceptors take
/// turns.
const AT_ONCE: usize = 16;

/// The time after which the next stream may begin in any case, since a peer can stop in the middle of a step.
const TURN: Duration = Duration::from_secs(2);

static TURNS: Turns = Turns::new(AT_ONCE, TURN);

/// A number of turns, each for a time at most.
struct Turns {
    free: Semaphore,
    longest: Duration,
}

impl Turns {
    const fn new(at_once: usize, longest: Duration) -> Self {
        Self {
            free: Semaphore::const_new(at_once),
            longest,
        }
    }

    async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let turn = self.free.acquire().await;
        let mut work = pin!(work);
        if let Ok(done) = timeout(self.longest, &mut work).await {
            return done;
        }
        drop(turn);
        work.await
    }
}

/// Runs `work` when it has a turn.
async fn in_turn<T>(work: impl Future<Output = T>) -> T {
    TURNS.run(work).await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::future::{join, join_all, select};
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_stopped_peer_keeps_its_turn_for_a_while_only() {
        let turns = Turns::new(2, Duration::from_millis(1));
        let stopped = join_all((0..7).map(|_| turns.run(pending::<()>())));
        select(pin!(stopped), pin!(turns.run(ready(())))).await;
    }

    #[tokio::test]
    async fn no_more_than_a_few_work_at_once() {
        let turns = Turns::new(2, Duration::from_secs(3600));
        let working = || turns.run(async { turns.free.available_permits() });
        let (first, second) = join(working(), working()).await;
        assert_eq!((first, second), (1, 1));
        let crowd = join_all((0..100).map(|_| turns.run(yield_now())));
        let most = async {
            yield_now().await;
            turns.free.available_permits()
        };
        assert_eq!(join(crowd, most).await.1, 0);
    }
}
