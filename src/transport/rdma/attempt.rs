//! One attempt to connect a queue pair over one pair of ports, in steps with the peer.

use std::{
    future::Future,
    io,
    time::{Duration, Instant},
};

use futures::{SinkExt, StreamExt};
use tokio::time::timeout;

use super::{
    link_setup::{Blueprint, Connected, Opened},
    steps::{decode, encode},
};
use crate::{
    HandshakeFault,
    host::host_name,
    transport::control::{codec::Control, message::Message},
};

/// How long all queue pairs that are tried may take in all, each from connecting to a message that has
/// crossed it. Milliseconds are usual; who waits for a fallback should not wait for more than this, with
/// what it takes to open them. Half of it bears the loss of one packet, which is sent again after
/// 0.54 s; a third just does not, but then there is another pair.
const PROOF_LIMIT: Duration = Duration::from_millis(1500);

/// What is left of the time that queue pairs may take.
pub(super) struct Clock {
    left: Duration,
    /// Over how many pairs of ports.
    pub(super) share: u32,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            left: PROOF_LIMIT,
            share: 1,
        }
    }

    /// `work`, for as long as one pair may take. An error says where it was.
    async fn within<T>(
        &mut self,
        blueprint: &Blueprint,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let (began, limit) = (Instant::now(), self.left / self.share);
        let Blueprint { name, remedy, .. } = blueprint;
        let late = |_| {
            let seconds = limit.as_secs_f32();
            let text = format!("nothing crossed the queue pair within {seconds:.1} s ({remedy})");
            Err(text)
        };
        let result = timeout(limit, work).await.unwrap_or_else(late);
        self.left = self.left.saturating_sub(began.elapsed());
        result.map_err(|reason| located(&format!("{name}: {reason}")))
    }
}

/// Builds one queue pair and sends something over it.
pub(super) async fn attempt(
    control: &mut Control,
    blueprint: Result<Blueprint, String>,
    clock: &mut Clock,
) -> Result<Result<(Blueprint, Connected), String>, HandshakeFault> {
    let opened = blueprint.and_then(|blueprint| Ok((blueprint.open(0)?, blueprint)));
    let opened = opened.map_err(|reason| located(&reason));
    let part = opened.as_ref().map(|(opening, _)| encode(&opening.part()));
    let theirs = exchange(control, part.map_err(Clone::clone)).await?;
    let ((opening, blueprint), theirs) = match (opened, theirs) {
        (Ok(opened), Ok(theirs)) => (opened, theirs),
        (Err(reason), _) | (Ok(_), Err(reason)) => return Ok(Err(reason)),
    };
    let nonsense = |_| HandshakeFault::Protocol("a queue pair that makes no sense");
    let theirs: Opened = decode(&theirs).map_err(nonsense)?;
    let connected = clock.within(&blueprint, opening.connect(theirs)).await;
    let expected = connected.as_ref().ok().and_then(Connected::expect_proof);
    let step = connected.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
    let theirs = exchange(control, step).await?;
    let mut connected = match (connected, theirs) {
        (Ok(connected), Ok(_)) => connected,
        (Err(reason), _) | (Ok(_), Err(reason)) => return Ok(Err(reason)),
    };
    let proof = clock.within(&blueprint, connected.prove(expected)).await;
    let step = proof.as_ref().map(|()| Vec::new()).map_err(Clone::clone);
    let theirs = exchange(control, step).await?;
    Ok(proof.and(theirs).map(|_| (blueprint, connected)))
}

/// Both ends will read it.
fn located(reason: &str) -> String {
    format!("{}: {reason}", host_name())
}

/// Tells the peer this end's part of a step, and takes the peer's.
async fn exchange(
    control: &mut Control,
    ours: Result<Vec<u8>, String>,
) -> Result<Result<Vec<u8>, String>, HandshakeFault> {
    control.send(Message::Step(ours)).await?;
    let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other end");
    match control.next().await.ok_or_else(closed)?? {
        Message::Step(theirs) => Ok(theirs),
        Message::Abort { reason, .. } => Err(HandshakeFault::Refused(reason)),
        _ => Err(HandshakeFault::Protocol(
            "a message in the middle of a step",
        )),
    }
}
