//! One attempt to connect a queue pair over one pair of ports, in steps with the peer.

use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};

use crate::{
    HandshakeFault,
    host::host_name,
    running_time::within_running_time,
    transport::{
        control::{
            codec::{Control, closed},
            message::Message,
        },
        rdma::{
            link_setup::{ConnectedLink, LinkOffer, LinkPlan},
            steps::{decode, encode},
        },
    },
};

/// The time limit for all queue pairs that are tried, from connecting to a frame that has crossed. Milliseconds are usual.
/// A user whose stream falls back to TCP waits for all of it. Half of it is enough for the loss of one packet, which is
/// sent again after 0.54 s; a third is not, but then there is another pair.
const PROOF_LIMIT: Duration = Duration::from_millis(1500);

/// The rest of the time in which a queue pair must be proved.
pub(super) struct ProofBudget {
    left: Duration,
    /// The number of pairs of ports that share the rest.
    pub(super) share: u32,
}

impl ProofBudget {
    pub(super) fn new() -> Self {
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

/// Makes one queue pair and proves it, in steps with the peer. The inner error is the reason why it failed; both ends know it.
pub(super) async fn attempt(
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
