//! From two lists of ports to a queue pair that a message has crossed.
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {offer}               ───────────►
//!                               ◄───────────   Welcome {proposal}: the best pairs, sequence numbers
//!   Step: endpoint, slots       ◄──────────►   Step: endpoint, slots
//!   Step: connected             ◄──────────►   Step: connected
//!                 one frame each way that bytes will travel
//!   Step: it arrived            ◄──────────►   Step: it arrived
//! ```
//!
//! Either end may say at each step why it cannot go on; then both try the next pair that was proposed,
//! from its first step. After the last one both use TCP, or neither does.

use std::{
    future::Future,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures::{SinkExt, StreamExt};
use tokio::time::timeout;

use super::{
    Rdma,
    link::{Place, Posting},
    memlock::{Memlock, fit, why_smaller},
    opening::{Blueprint, Connected, Opened},
    ports::{
        choice::{DeviceChoice, NoRdma},
        device::Inventory,
        explain::{fruitless, remedy},
        offer::Candidate,
        proposal::{Proposal, Way, Ways},
        sysfs::Roots,
    },
    receive_path::{self, RdmaReceive},
    renewal::{driver::Renewer, request::Renewal},
    send_path::{self, RdmaSend},
    steps::{decode, encode},
};
use crate::{
    Direction, Error, HandshakeFault, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, MIN_DEPTH, RdmaConfig,
    StreamConfig, TransportPolicy,
    host::host_name,
    transport::{
        control::{codec::Control, message::Message, state::State, terms::Agreement},
        data::shared::Shared,
    },
};

/// How long all queue pairs that are tried may take in all, each from connecting to a message that has
/// crossed it. Milliseconds are usual; who waits for a fallback should not wait for more than this, with
/// what it takes to open them. Half of it bears the loss of one packet, which is sent again after
/// 0.54 s; a third just does not, but then there is another pair.
const PROOF_LIMIT: Duration = Duration::from_millis(1500);

/// Most slots of a pool: their tokens, of some 20 bytes each, fit into one message.
const MAX_RDMA_DEPTH: usize = 2048;

/// Why there is no way over RDMA.
#[derive(Debug, Clone)]
pub(crate) struct NoWay {
    /// In words.
    pub(crate) reason: String,
    /// There is hardware for it all the same.
    pub(crate) hardware: bool,
}

/// This end's ways over RDMA.
pub(crate) struct Ours {
    candidates: Vec<Candidate>,
    chunk_bytes: usize,
    depth: usize,
    /// Why the pool is smaller than was wanted, if it is.
    smaller: Option<String>,
    marks: RdmaConfig,
}

/// Both sides of an established path, and its name.
pub(crate) struct Ends {
    /// Absent in a stream that only receives.
    send: Option<send_path::Live>,
    /// Absent in a stream that only sends.
    receive: Option<receive_path::Live>,
    blueprint: Blueprint,
    renewal: Option<Arc<Renewal>>,
    name: String,
    smaller: Option<String>,
}

impl Ours {
    /// This machine's ways, and the pool that may be pinned for a stream.
    ///
    /// # Errors
    ///
    /// Why there is none, in words.
    pub(crate) fn look(config: &StreamConfig) -> Result<Self, NoWay> {
        Self::among(&Inventory::read(&Roots::default()), config)
    }

    fn among(inventory: &Inventory, config: &StreamConfig) -> Result<Self, NoWay> {
        let hardware = inventory.ports().next().is_some();
        let no_way = |reason: String| NoWay { reason, hardware };
        let candidates = choice(config).candidates(inventory);
        let candidates = candidates.map_err(|none| no_way(none.to_string()))?;
        let chunk_bytes = config
            .rdma
            .chunk_bytes
            .clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let depth = config.rdma.depth.clamp(MIN_DEPTH, MAX_RDMA_DEPTH);
        let memlock = Memlock::now();
        let smaller = why_smaller(chunk_bytes, depth, config.direction, &memlock);
        let fitting = fit(chunk_bytes, depth, config.direction, &memlock);
        let (chunk_bytes, depth) = fitting.map_err(|small| no_way(small.to_string()))?;
        Ok(Self {
            candidates,
            chunk_bytes,
            depth,
            smaller,
            marks: config.rdma.clone(),
        })
    }

    /// Finds out early what would only fail later: a device that was asked for and is not there, or
    /// no device where RDMA was insisted on.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub(crate) fn check(config: &StreamConfig) -> Result<(), Error> {
        let free_choice = choice(config) == DeviceChoice::default();
        match config.transport {
            TransportPolicy::Tcp => return Ok(()),
            // Nothing to be wrong about, and a walk through sysfs takes a thousand system calls.
            TransportPolicy::Auto if free_choice => return Ok(()),
            _ => {}
        }
        let inventory = Inventory::read(&Roots::default());
        match choice(config).candidates(&inventory) {
            Err(NoRdma::Choice(reason)) => return Err(Error::Device { reason }),
            _ if config.transport == TransportPolicy::Auto => return Ok(()),
            _ => {}
        }
        Self::among(&inventory, config).map(drop).map_err(|none| {
            let mut reason = none.reason;
            // What is said of memory, says so already.
            if !reason.contains("--transport") {
                reason.push_str("; use --transport auto to take TCP instead");
            }
            Error::Device { reason }
        })
    }

    /// What the peer is told of them.
    pub(crate) fn offer(&self) -> Vec<u8> {
        encode(&Ways::of(&self.candidates, self.chunk_bytes))
    }

    /// The acceptor's choice among the pairs of both ends' ways.
    ///
    /// # Errors
    ///
    /// Why no pair will do, in words.
    pub(crate) fn propose(&self, theirs: &[u8]) -> Result<Vec<u8>, String> {
        let theirs: Ways = decode(theirs)?;
        let proposal = Proposal::new(&self.candidates, self.chunk_bytes, &theirs, random_psns)?;
        Ok(encode(&proposal))
    }

    /// Builds the queue pairs that were proposed, one after the other, until something has crossed one.
    ///
    /// # Errors
    ///
    /// Outside, of the control connection; inside, why there is no queue pair: both ends know then.
    pub(crate) async fn establish(
        &self,
        control: &mut Control,
        proposal: &[u8],
        dialer: bool,
        agreement: &Agreement,
    ) -> Result<Result<Ends, String>, HandshakeFault> {
        let nonsense = |_| HandshakeFault::Protocol("a choice of ports that makes no sense");
        let proposal: Proposal = decode(proposal).map_err(nonsense)?;
        let mut clock = Clock::new();
        let mut reasons = Vec::new();
        for (way, left) in proposal.ways.iter().zip((1..=proposal.ways.len()).rev()) {
            clock.share = u32::try_from(left).unwrap_or(u32::MAX);
            let blueprint = self.blueprint(way, dialer, agreement);
            let attempt = attempt(control, blueprint, &mut clock);
            match attempt.await? {
                Ok((blueprint, connected)) => {
                    return Ok(Ok(self.ends(blueprint, connected, reasons.first())));
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Ok(Err(fruitless(&reasons, proposal.doubt.as_deref())))
    }

    fn ends(&self, blueprint: Blueprint, connected: Connected, better: Option<&String>) -> Ends {
        let (send, receive) = connected.lives();
        let mut name = blueprint.name.clone();
        if let Some(reason) = better {
            name = format!("{name}; first tried: {reason}");
        }
        Ends {
            send,
            receive,
            name,
            smaller: self.smaller.clone(),
            blueprint,
            renewal: None,
        }
    }

    /// What a link between both ends looks like.
    fn blueprint(
        &self,
        way: &Way,
        dialer: bool,
        agreement: &Agreement,
    ) -> Result<Blueprint, String> {
        let number = if dialer { way.dialer } else { way.acceptor };
        let candidate = self.candidates.get(usize::from(number));
        let candidate = candidate.ok_or("a port that was not offered")?;
        let chunk_bytes = (way.chunk_bytes as usize).min(self.chunk_bytes);
        if chunk_bytes < MIN_CHUNK_BYTES {
            return Err("a chunk size below the least".to_owned());
        }
        let psns = (way.dialer_psn, way.acceptor_psn);
        let (send_psn, receive_psn) = if dialer { psns } else { (psns.1, psns.0) };
        let depth = u32::try_from(self.depth).map_err(|error| error.to_string())?;
        let place = Place {
            device: candidate.device.clone(),
            port: candidate.port,
            gid_index: usize::from(candidate.gid_index),
            mtu: u32::from(way.mtu),
            send_psn,
            receive_psn,
            depth,
            traffic_class: self.marks.traffic_class,
            service_level: self.marks.service_level,
            pkey_index: self.marks.pkey_index,
        };
        Ok(Blueprint {
            remedy: remedy(candidate.offer.kind),
            name: format!("{candidate}, MTU {}", way.mtu),
            place,
            direction: agreement.direction,
            chunk_bytes,
            depth,
            renew_after: self.marks.renew_after,
            posting: posting(agreement.direction, candidate.offer.software),
        })
    }
}

/// Who posts writes. With a device of software that takes as long as its work does, time in which a sender fills
/// its next chunk, if the machine can do two things at once. With hardware it takes less than to wake
/// another thread.
fn posting(direction: Direction, software: bool) -> Posting {
    let is_parallel = || thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if software && direction.sends() && is_parallel() {
        Posting::Thread
    } else {
        Posting::Inline
    }
}

impl Ends {
    /// The name of the link for the user: device, port, GID and MTU, and why no better pair of ports is used.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// The reason why the pool is smaller than was wanted, if it is.
    pub(crate) fn smaller(&self) -> Option<String> {
        self.smaller.clone()
    }

    /// The payload of a chunk, in bytes.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.blueprint.chunk_bytes
    }

    /// The slots of the receive pool.
    pub(crate) fn depth(&self) -> u32 {
        self.blueprint.depth
    }

    /// The paths of the stream whose state is `state`.
    pub(crate) fn paths(&mut self, state: &Arc<State>) -> (Option<RdmaSend>, Option<RdmaReceive>) {
        let renewal = self.renewal(state);
        let send = self.send.take();
        let send = send.map(|live| RdmaSend::new(live, Arc::clone(&renewal)));
        let receive = self.receive.take();
        (send, receive.map(|live| RdmaReceive::new(live, renewal)))
    }

    fn renewal(&mut self, state: &Arc<State>) -> Arc<Renewal> {
        let limit = self.blueprint.renew_after;
        let fresh = || Arc::new(Renewal::new(Arc::clone(state), limit));
        Arc::clone(self.renewal.get_or_insert_with(fresh))
    }

    /// Replaces the link when that is needed, for as long as the stream lasts. Fails the stream when a link
    /// is lost and no new one can be made for `patience`.
    pub(crate) async fn renew(mut self, shared: Arc<Shared<Rdma>>, patience: Duration) {
        let renewal = self.renewal(&shared.state);
        let renewer = Renewer::new(shared, renewal, self.blueprint, patience);
        renewer.serve().await;
    }
}

fn choice(config: &StreamConfig) -> DeviceChoice {
    DeviceChoice {
        device: config.rdma.device.clone(),
        port: config.rdma.port,
        gid_index: config.rdma.gid_index,
        pkey_index: config.rdma.pkey_index,
    }
}

/// What is left of the time that queue pairs may take.
struct Clock {
    left: Duration,
    /// Over how many pairs of ports.
    share: u32,
}

impl Clock {
    fn new() -> Self {
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
async fn attempt(
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

/// Two random packet sequence numbers of 24 bits: a packet of a connection that is gone fits no new one.
fn random_psns() -> [u32; 2] {
    let mut bytes = [0; 8];
    // Without random numbers there was no handshake either.
    let _ = getrandom::fill(&mut bytes);
    let psn = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i])) >> 8;
    [psn(0), psn(4)]
}
