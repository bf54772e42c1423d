//! From two ends' ports to a queue pair that a frame has crossed.
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {offer}               ───────────►
//!                               ◄───────────   Welcome {proposal}: the best pairs, sequence numbers
//!   Step: endpoint, slots, express ◄───────►   Step: endpoint, slots, express
//!   Step: connected             ◄──────────►   Step: connected
//!                 one byte each way that bytes will travel
//!   Step: it arrived            ◄──────────►   Step: it arrived
//! ```
//!
//! Either end may send, in place of a step, the reason why it cannot continue. Then both ends try the next pair that
//! was proposed, from its first step. After the last pair both use TCP, or both fail.
//!
//! # The proof
//!
//! A queue pair connects without sending a packet, so a connected queue pair proves nothing about VLANs, firewalls or
//! switches. Before either end trusts it, one byte crosses it in each direction that will carry data, as a frame does.
//! Its receive is posted before either end has said `connected`. All ways to lay the rails over the pairs have one limit of
//! time, and each has half of what the ways before it have left, the last one all of it: a user who falls back to TCP
//! would notice more. If the rails can be spread over several cards, the limit is twice as long: it is worth a second to
//! have them all.
//!
//! Two rules keep a busy host from looking like a broken network. The limit counts the time in which the process runs:
//! a step that ends late counts as one, and after a pause of half the limit it begins again. And an acceptor proves a
//! few streams at a time, each for a limited time before the next may begin.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{SinkExt, StreamExt, future::try_join_all};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    link_setup::{decode, encode},
    ports::offer::{DeviceChoice, NoRdma, no_pair_works, remedy},
    renewal::{LinkStalls, RenewalShared, Renewer},
};
use crate::{
    DeviceFault, Direction, Error, HandshakeFault, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, MIN_DEPTH,
    RdmaConfig, StreamConfig, TransportPolicy,
    faults::{self, Faults},
    host::host_name,
    running_time::within_running_time,
    threads::{self, CarryThread},
    transport::{
        control::{
            connection::{Control, closed},
            message::{self, Agreement, Message},
            noise::Role,
            seal::StreamSeal,
            state::{RailState, State},
        },
        data::steward::Shared,
        rdma::{
            Rdma, Unavailable,
            express::queue::RingLayout,
            link::Posting,
            link_setup::{
                ConnectedLink, FirstPools, LinkOffer, LinkPlan, LinkPorts, LiveLink,
                MAX_RDMA_DEPTH, UnconnectedLink,
            },
            memlock::{Memlock, fit, why_smaller},
            nudge::Nudge,
            pool::PoolPlan,
            ports::{
                device::{self, Inventory},
                offer::Candidate,
                proposal::{PortPair, PortsOffer, Proposal},
            },
            receive_path::{self, RdmaReceive},
            send_path::{self, RdmaSend},
            verbs::queue_pair::{QueuePairConfig, random_psn},
        },
    },
};

#[cfg(feature = "cli")]
use crate::transport::rdma::memlock::PinDemand;

/// The time limit for all queue pairs that are tried, from connecting to a frame that has crossed. Milliseconds are
/// usual. A user whose stream falls back to TCP waits for all of it. Half of it is enough for the loss of one packet,
/// which is sent again after 0.54 s; a quarter is not, but then there is another pair.
const PROOF_LIMIT: Duration = Duration::from_millis(1500);

/// The rest of the time in which the queue pairs of one way must be proved.
struct ProofBudget(Duration);

impl ProofBudget {
    /// Runs the work of each rail within the rest. An error names the host and the port.
    async fn within<T, W>(
        &mut self,
        rails: impl Iterator<Item = (LinkName, W)>,
    ) -> Result<Vec<T>, String>
    where
        W: Future<Output = Result<T, String>>,
    {
        let (began, limit) = (Instant::now(), self.0);
        let one = |(LinkName { name, remedy }, work)| async move {
            let late = || {
                let seconds = limit.as_secs_f32();
                let text =
                    format!("nothing crossed the queue pair within {seconds:.1} s ({remedy})");
                Err(text)
            };
            let result = within_running_time(limit, work).await.unwrap_or_else(late);
            result.map_err(|reason| with_host_name(&format!("{name}: {reason}")))
        };
        let result = try_join_all(rails.map(one)).await;
        self.0 = limit.saturating_sub(began.elapsed());
        result
    }
}

/// What is said of a link that fails.
struct LinkName {
    name: String,
    remedy: &'static str,
}

impl LinkName {
    fn of(plan: &LinkPlan) -> Self {
        Self {
            name: plan.ports().name.clone(),
            remedy: plan.ports().remedy,
        }
    }
}

struct ProvedRail {
    plan: LinkPlan,
    link: ConnectedLink,
    /// The thread of each rail but the first, in whose runtime its completions are polled.
    thread: Option<CarryThread>,
}

/// A rail whose queue pair is not connected yet.
struct OpenedRail {
    plan: LinkPlan,
    link: UnconnectedLink,
    thread: Option<CarryThread>,
}

/// Makes a queue pair for each rail, the first one first.
fn open_rails(plans: Vec<LinkPlan>) -> Result<Vec<OpenedRail>, String> {
    let open = |(number, plan): (usize, LinkPlan)| {
        let thread = (number > 0).then(|| CarryThread::start("rail"));
        let thread = thread.transpose().map_err(|error| error.to_string())?;
        let link = {
            let _context = thread.as_ref().map(CarryThread::enter);
            plan.open(0, true)?
        };
        Ok(OpenedRail { plan, link, thread })
    };
    plans.into_iter().enumerate().map(open).collect()
}

/// Makes one queue pair for each rail and proves them, in steps with the peer. The inner error is the reason why that
/// failed; both ends know it.
async fn attempt(
    control: &mut Control,
    plans: Result<Vec<LinkPlan>, String>,
    budget: &mut ProofBudget,
) -> Result<Result<Vec<ProvedRail>, String>, HandshakeFault> {
    let opened = plans.and_then(open_rails);
    let opened = opened.map_err(|reason| with_host_name(&reason));
    let parts = |rails: &Vec<OpenedRail>| {
        let parts: Vec<LinkOffer> = rails.iter().map(|rail| rail.link.part()).collect();
        encode(&parts)
    };
    let step = opened.as_ref().map(parts).map_err(Clone::clone);
    let theirs = exchange(control, step).await?;
    let (opened, theirs) = match (opened, theirs) {
        (Ok(opened), Ok(theirs)) => (opened, theirs),
        (Err(reason), _) | (Ok(_), Err(reason)) => return Ok(Err(reason)),
    };
    let malformed = |_| HandshakeFault::Protocol("a queue pair that cannot be decoded");
    let theirs: Vec<LinkOffer> = decode(&theirs).map_err(malformed)?;
    if theirs.len() != opened.len() {
        return Err(HandshakeFault::Protocol("another number of queue pairs"));
    }
    let connecting = opened.into_iter().zip(theirs);
    let connecting =
        connecting.map(|(rail, theirs)| (LinkName::of(&rail.plan), connect(rail, theirs)));
    let connected = budget.within(connecting).await;
    let expect = |rails: &Vec<ProvedRail>| -> Vec<_> {
        rails.iter().map(|rail| rail.link.expect_proof()).collect()
    };
    let expected = connected.as_ref().map(expect).unwrap_or_default();
    let step = connected.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
    let theirs = exchange(control, step).await?;
    let mut connected = match (connected, theirs) {
        (Ok(connected), Ok(_)) => connected,
        (Err(reason), _) | (Ok(_), Err(reason)) => return Ok(Err(reason)),
    };
    let proving = connected.iter_mut().zip(expected);
    let proving =
        proving.map(|(rail, expected)| (LinkName::of(&rail.plan), rail.link.prove(expected)));
    let proof = budget.within(proving).await;
    let step = proof.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
    let theirs = exchange(control, step).await?;
    Ok(proof.and(theirs).map(|_| connected))
}

/// Connects the queue pair of a rail to the peer's.
async fn connect(rail: OpenedRail, theirs: LinkOffer) -> Result<ProvedRail, String> {
    let OpenedRail { plan, link, thread } = rail;
    let link = link.connect(theirs).await?;
    Ok(ProvedRail { plan, link, thread })
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
    let (rail, step) = (0, ours);
    control.send(Message::Step { rail, step }).await?;
    match control.next().await.ok_or_else(closed)?? {
        Message::Step { rail: 0, step } => Ok(step),
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
    thread: Option<CarryThread>,
    name: String,
    smaller_pool_reason: Option<String>,
}

impl Established {
    /// Wraps a proved link. `first_failure` is the reason why the pair of ports that was tried first does not work, if
    /// another one is used. `smaller_pool_reason` is the reason why the pool is smaller than requested, if it is.
    fn new(
        rail: ProvedRail,
        first_failure: Option<&String>,
        smaller_pool_reason: Option<String>,
    ) -> Self {
        let ProvedRail { plan, link, thread } = rail;
        let LiveLink {
            nudge,
            send,
            receive,
        } = link.into_live();
        let mut name = plan.ports().name.clone();
        if let Some(reason) = first_failure {
            name = format!("{name}; first tried: {reason}");
        }
        Self {
            send,
            receive,
            nudge: Some(nudge),
            plan,
            renewal: None,
            thread,
            name,
            smaller_pool_reason,
        }
    }

    /// Has the watch over the data path of a stream ask these links, one for each rail, about counts that stand still.
    pub(crate) fn watch(links: &mut [Self], state: &Arc<State>) {
        let renewals = links.iter_mut().enumerate();
        let renewals = renewals.map(|(rail, link)| link.renewal(&RailState::new(state, rail)));
        let renewals: Vec<_> = renewals.collect();
        state.data.set_path(LinkStalls::new(&renewals));
    }

    /// Returns the thread of the rail, if it is not the first one.
    pub(crate) fn thread(&self) -> Option<CarryThread> {
        self.thread.clone()
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
        self.plan.pool.chunk_bytes
    }

    /// Returns the number of slots of the receive pool.
    pub(crate) fn depth(&self) -> u32 {
        self.plan.pool.depth
    }

    /// Returns the number of slots of the peer's receive pool; 0 in a stream that only receives.
    pub(crate) fn peer_slots(&self) -> usize {
        self.send.as_ref().map_or(0, |send| send.peer().depth)
    }

    /// Makes the two sides of the data path, for the stream whose state is `state`.
    pub(crate) fn paths(&mut self, state: &RailState) -> (Option<RdmaSend>, Option<RdmaReceive>) {
        let renewal = self.renewal(state);
        renewal.nudges.set(self.nudge.take());
        let send = self.send.take();
        if send
            .as_ref()
            .is_some_and(|send| send.peer().slots.is_empty())
        {
            state.pause();
        }
        let send = send.map(|live| RdmaSend::new(live, Arc::clone(&renewal)));
        let receive = self.receive.take();
        (send, receive.map(|live| RdmaReceive::new(live, renewal)))
    }

    fn renewal(&mut self, state: &RailState) -> Arc<RenewalShared> {
        let limit = self.plan.renew_after;
        let fresh = || Arc::new(RenewalShared::new(state.clone(), limit));
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

/// The most small frames under way. Each has 4 KiB of memory at each end.
const MAX_SMALL_FRAMES: u32 = 1024;

/// The RDMA ports of this end that may be used, and the pool that fits.
pub(crate) struct LocalPorts {
    candidates: Vec<Candidate>,
    /// The pool of each rail with one rail, with two, and so on.
    pools: Vec<RailPool>,
    /// What the user has set.
    config: RdmaConfig,
    /// Received chunks are copied to memory that the peer cannot write.
    copies: bool,
    /// The kernel limits how much memory this process may pin.
    is_limited: bool,
    /// The number of small frames that may be under way; 0 without an express path.
    small_frames: u32,
    faults: Faults,
}

impl LocalPorts {
    /// Reads the ports of this host, and how much memory may be pinned for a stream.
    pub(crate) fn discover(config: &StreamConfig) -> Result<Self, Unavailable> {
        Self::among(&device::inventory(), config)
    }

    /// Takes the ports from `inventory`, in place of those of this host.
    pub(crate) fn among(inventory: &Inventory, config: &StreamConfig) -> Result<Self, Unavailable> {
        let hardware = inventory.ports().next().is_some();
        let unavailable = |reason: String| Unavailable { reason, hardware };
        let candidates = DeviceChoice::from(&config.rdma).candidates(inventory);
        let candidates = candidates.map_err(|none| unavailable(none.to_string()))?;
        let mut memlock = Memlock::now();
        let small_frames = config.rdma.small_frames.min(MAX_SMALL_FRAMES);
        let has_express = small_frames > 0 && memlock.reserve_express(express_bytes(small_frames));
        let pools = (1..=message::most_rails(config)).map_while(|rails| {
            let memlock = memlock.divided(rails)?;
            Some(RailPool::fitting(config, &memlock))
        });
        let pools = pools.collect::<Result<_, _>>().map_err(unavailable)?;
        Ok(Self {
            candidates,
            pools,
            config: config.rdma.clone(),
            copies: config.copy_received,
            is_limited: memlock.limit.is_some(),
            small_frames: if has_express { small_frames } else { 0 },
            faults: faults::of(config),
        })
    }

    /// Returns how much memory one end of a stream with these settings pins, whatever this process may pin.
    #[cfg(feature = "cli")]
    pub(crate) fn demand(config: &StreamConfig) -> PinDemand {
        let (chunk_bytes, depth) = wanted_pool(config);
        let small_frames = config.rdma.small_frames.min(MAX_SMALL_FRAMES);
        let express = (small_frames > 0).then(|| express_bytes(small_frames));
        PinDemand::new(chunk_bytes, depth, config.direction, express)
    }

    /// Reports early what would fail in every handshake: a named device that does not exist, or no usable device with
    /// the policy `Rdma`.
    pub(crate) fn check(config: &StreamConfig) -> Result<(), Error> {
        let free_choice = DeviceChoice::from(&config.rdma) == DeviceChoice::default();
        match config.transport {
            TransportPolicy::Tcp => return Ok(()),
            // Nothing can be wrong, and to read sysfs takes a thousand system calls.
            TransportPolicy::Auto if free_choice => return Ok(()),
            _ => {}
        }
        let inventory = device::inventory();
        match DeviceChoice::from(&config.rdma).candidates(&inventory) {
            Err(NoRdma::Choice(reason)) => {
                let fault = DeviceFault::Choice;
                return Err(Error::Device { fault, reason });
            }
            _ if config.transport == TransportPolicy::Auto => return Ok(()),
            Err(NoRdma::Unusable(reason)) => {
                let fault = DeviceFault::Unusable;
                return Err(Error::Device { fault, reason });
            }
            Ok(_) => {}
        }
        // There are ports, so that only memory can be missing.
        Self::among(&inventory, config).map(drop).map_err(|none| {
            let (fault, reason) = (DeviceFault::Memlock, none.reason);
            Error::Device { fault, reason }
        })
    }

    /// Encodes the ports for the peer.
    pub(crate) fn offer(&self) -> Vec<u8> {
        encode(&PortsOffer::of(&self.candidates, self.chunk_sizes()))
    }

    /// Returns the sizes of chunks with one rail, with two, and so on.
    fn chunk_sizes(&self) -> Vec<u32> {
        let bytes = |pool: &RailPool| u32::try_from(pool.chunk_bytes).unwrap_or(u32::MAX);
        self.pools.iter().map(bytes).collect()
    }

    /// Proposes pairs of this end's and the dialer's ports for so many rails, as the acceptor. Returns true beside them if
    /// there are several over which a stream can go on when one is lost.
    pub(crate) fn propose(&self, theirs: &[u8], rails: usize) -> Result<(Vec<u8>, bool), String> {
        let theirs: PortsOffer = decode(theirs)?;
        let ours = (&self.chunk_sizes()[..], rails);
        let psns = || [random_psn(), random_psn()];
        let proposal = Proposal::new(&self.candidates, ours, &theirs, psns)?;
        Ok((encode(&proposal), proposal.spread > 1))
    }

    /// Tries the proposed pairs of ports one after the other, until a frame has crossed a queue pair of each rail. Returns
    /// the rails.
    /// The outer error is that of the control connection. The inner error is the reason why no pair works; both ends
    /// know it.
    pub(crate) async fn establish(
        &self,
        control: &mut Control,
        proposal: &[u8],
        role: Role,
        agreement: &Agreement,
        seal: &StreamSeal,
    ) -> Result<Result<Vec<Established>, String>, HandshakeFault> {
        let malformed = |_| HandshakeFault::Protocol("a choice of ports that cannot be decoded");
        let proposal: Proposal = decode(proposal).map_err(malformed)?;
        let rails = usize::from(proposal.rails);
        if rails > agreement.rails.min(self.pools.len()) {
            return Err(HandshakeFault::Protocol("more rails than were offered"));
        }
        let work = Box::pin(self.try_pairs(control, &proposal, role, agreement, seal));
        match role {
            Role::Dialer => work.await,
            Role::Acceptor => in_turn(work).await,
        }
    }

    async fn try_pairs(
        &self,
        control: &mut Control,
        proposal: &Proposal,
        role: Role,
        agreement: &Agreement,
        seal: &StreamSeal,
    ) -> Result<Result<Vec<Established>, String>, HandshakeFault> {
        let mut reasons = Vec::new();
        let proposed = usize::from(proposal.rails);
        let ways = proposal.ways(proposed);
        let has_spread = ways.len() > proposal.pairs.len();
        let mut time = PROOF_LIMIT * if has_spread { 2 } else { 1 };
        for (left, way) in (0..ways.len()).rev().zip(ways) {
            let rest = if left > 0 { time / 2 } else { Duration::ZERO };
            let mut budget = ProofBudget(time.saturating_sub(rest));
            let plan = |(number, pair)| {
                let rails = proposed;
                let rail = PlannedRail { number, rails };
                // Once a way has failed, only the pair that is tried now may work.
                let pairs = if reasons.is_empty() {
                    proposal.pairs_of_rail(pair)
                } else {
                    vec![pair]
                };
                self.plan(&pairs, rail, role, agreement, seal)
            };
            let plans = way.into_iter().enumerate().map(plan).collect();
            let attempted = attempt(control, plans, &mut budget).await?;
            time = rest + budget.0;
            match attempted {
                Ok(rails) => {
                    let established = |rail| {
                        let smaller = self.pools[proposed - 1].smaller_pool_reason.clone();
                        Established::new(rail, reasons.first(), smaller)
                    };
                    return Ok(Ok(rails.into_iter().map(established).collect()));
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Ok(Err(no_pair_works(&reasons, proposal.doubt.as_deref())))
    }

    /// Plans the links of a rail over these pairs of ports: the first link over the first pair.
    pub(in crate::transport::rdma) fn plan(
        &self,
        pairs: &[&PortPair],
        rail: PlannedRail,
        role: Role,
        agreement: &Agreement,
        seal: &StreamSeal,
    ) -> Result<LinkPlan, String> {
        let first = pairs.first().ok_or("no ports")?;
        let pool = self
            .pools
            .get(rail.rails - 1)
            .ok_or("more rails than there may be")?;
        let chunk_bytes = (first.chunk_bytes as usize).min(pool.chunk_bytes);
        if chunk_bytes < MIN_CHUNK_BYTES {
            return Err("a chunk size below the least".to_owned());
        }
        let depth = u32::try_from(pool.depth).map_err(|error| error.to_string())?;
        // Small messages stay on the first rail.
        let has_express = self.small_frames > 0 && rail.number == 0;
        let ring = has_express.then(|| {
            let direction = agreement.direction;
            RingLayout::new(self.small_frames, direction.sends(), direction.receives())
        });
        // Small messages need no pools. But where memory may be short, a stream that gets none must be able to use TCP.
        let is_pool_first = self.is_limited || ring.is_none();
        let ports = pairs.iter();
        let ports = ports.map(|pair| self.ports(pair, rail, role, agreement.direction, depth));
        Ok(LinkPlan {
            ports: ports.collect::<Result<_, _>>()?,
            direction: agreement.direction,
            pool: PoolPlan {
                chunk_bytes,
                depth,
                // A cipher reads what it opens more than once, and the peer's device may write it in between.
                copies: self.copies || seal.cipher().is_some(),
            },
            first_pools: FirstPools {
                send: is_pool_first,
                receive: is_pool_first,
            },
            renew_after: self.config.renew_after,
            seal: seal.of_rail(u32::try_from(rail.number).unwrap_or(u32::MAX)),
            ring,
            busy_poll: self.config.busy_poll,
            faults: self.faults,
        })
    }

    /// Plans a link of a rail over one pair of ports.
    fn ports(
        &self,
        pair: &PortPair,
        rail: PlannedRail,
        role: Role,
        direction: Direction,
        depth: u32,
    ) -> Result<LinkPorts, String> {
        let (number, send_psn, receive_psn) = match role {
            Role::Dialer => (pair.dialer, pair.dialer_psn, pair.acceptor_psn),
            Role::Acceptor => (pair.acceptor, pair.acceptor_psn, pair.dialer_psn),
        };
        let candidate = self.candidates.get(usize::from(number));
        let candidate = candidate.ok_or("a port that was not offered")?;
        let queue_pair = QueuePairConfig {
            device: candidate.device.clone(),
            port: candidate.port,
            gid_index: usize::from(candidate.gid_index),
            mtu: u32::from(pair.mtu),
            send_psn: rail.psn(send_psn),
            receive_psn: rail.psn(receive_psn),
            depth,
            traffic_class: self.config.traffic_class,
            service_level: self.config.service_level,
            pkey_index: self.config.pkey_index,
        };
        Ok(LinkPorts {
            name: format!("{candidate}, MTU {}", pair.mtu),
            remedy: remedy(candidate.offer.kind),
            queue_pair,
            posting: posting(direction, candidate.offer.software),
        })
    }
}

struct RailPool {
    /// The payload of a chunk, in bytes.
    chunk_bytes: usize,
    /// The number of slots.
    depth: usize,
    /// The reason why the pool is smaller than requested, if it is.
    smaller_pool_reason: Option<String>,
}

impl RailPool {
    /// Returns the pool that the settings ask for, as far as it fits.
    fn fitting(config: &StreamConfig, memlock: &Memlock) -> Result<Self, String> {
        let (chunk_bytes, depth) = wanted_pool(config);
        let most = MAX_RDMA_DEPTH / usize::try_from(memlock.rails).unwrap_or(usize::MAX);
        let depth = depth.min(most);
        let smaller_pool_reason = why_smaller(chunk_bytes, depth, config.direction, memlock);
        let fitting = fit(chunk_bytes, depth, config.direction, memlock);
        let (chunk_bytes, depth) = fitting.map_err(|small| small.to_string())?;
        Ok(Self {
            chunk_bytes,
            depth,
            smaller_pool_reason,
        })
    }
}

/// One of the rails of a stream, as its link is planned.
#[derive(Clone, Copy)]
pub(in crate::transport::rdma) struct PlannedRail {
    pub(in crate::transport::rdma) number: usize,
    /// The number of rails of the stream.
    pub(in crate::transport::rdma) rails: usize,
}

impl PlannedRail {
    /// Returns the first sequence number of the rail for that of its pair of ports: rails over one pair differ.
    fn psn(self, pair: u32) -> u32 {
        let number = u32::try_from(self.number).unwrap_or(u32::MAX);
        pair.wrapping_add(number.wrapping_mul(0x0010_0193)) & 0xff_ffff
    }
}

/// Returns the chunk size and the depth that the settings ask for.
fn wanted_pool(config: &StreamConfig) -> (usize, usize) {
    let RdmaConfig {
        chunk_bytes, depth, ..
    } = config.rdma;
    (
        chunk_bytes.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES),
        depth.clamp(MIN_DEPTH, MAX_RDMA_DEPTH),
    )
}

/// Returns the memory of an express path of a two-way stream, in bytes.
fn express_bytes(small_frames: u32) -> usize {
    RingLayout::new(small_frames, true, true).bytes()
}

/// Chooses the thread that posts writes. With a software device, posting takes as long as the device's work; on a
/// machine with several processors the sender fills its next chunk meanwhile. With hardware, posting takes less time
/// than to wake another thread.
fn posting(direction: Direction, software: bool) -> Posting {
    if software && direction.sends() && threads::is_parallel() {
        Posting::Thread
    } else {
        Posting::Inline
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::future::{join, join_all, select};
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn the_link_that_no_message_crosses_is_named() {
        let rail = |name: &str, crosses: bool| {
            let (name, remedy) = (name.to_owned(), "see the switch");
            let work = async move { if crosses { Ok(()) } else { pending().await } };
            (LinkName { name, remedy }, work)
        };
        let rails = [rail("rxe0", true), rail("rxe1", false)];
        let mut budget = ProofBudget(Duration::from_millis(80));
        let reason = budget.within(rails.into_iter()).await.unwrap_err();
        assert!(reason.contains("rxe1: nothing crossed"), "{reason}");
        assert_eq!(budget.0, Duration::ZERO);
    }

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
