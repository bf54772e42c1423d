//! A message over each pair of ports: which ports reach each other, with short and with long packets.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    endpoint::{CompletionSide, EndpointLimits, EndpointPlan, PacketMarks, VerbsEndpoint},
    run::{Patience, RunSignal, connect, exchange, run, swap, unstarted},
    task::nanos,
};
use crate::{
    RdmaConfig,
    perf::messages::{PortPairProof, TaskEnd, TaskResult, Verb, VerbsLimits, VerbsPort, WaitMode},
    threads,
    transport::raw::{
        Candidate, DeviceChoice, GidKind, MAX_OFFERS, Offers, QueueSizes, Role, inventory,
        networks_differ, rank, share_network, to_try,
    },
};

/// The most pairs of ports that are tried.
const MAX_PAIRS: usize = 16;

/// How long a message may take there and back.
const LIMIT: Duration = Duration::from_secs(2);

/// How long the other end may be silent after this end has finished: its own waits end within [`LIMIT`] or twice that.
const SILENCE: Duration = Duration::from_secs(10);

/// The bytes of a short message: it fits into the smallest packet.
const SHORT: u32 = 64;

/// The packets of full size of a long message. It has one more, of one byte.
const PACKETS: u32 = 4;

/// The sends and the receives of a proof, which has one of each for each message.
const SIZES: QueueSizes = QueueSizes {
    sends: 2,
    receives: 2,
    inline_bytes: 0,
};

/// The ports of one end.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "WirePorts", into = "WirePorts")]
struct OfferedPorts {
    offers: Offers,
    named: Vec<(VerbsPort, String)>,
}

type WirePorts = (Offers, Vec<(VerbsPort, String)>);

/// The time of a message there and back in nanoseconds, or why it did not arrive.
type MessageTime = Result<u64, String>;

/// Sends messages over the pairs of RDMA ports that may work, as one of two ends that are connected by `control`. Both
/// ends call it. A pair that does not work does not end it.
/// Fails if an end has no ports that may be used, no pair may work, or the ends lost their connection.
/// Dropping the future ends the proof at both ends, if `control` is closed as well.
pub(crate) async fn prove_ports(
    end: TaskEnd,
    config: &RdmaConfig,
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<TaskResult, String> {
    let found = candidates(config).await;
    let ports = found.as_ref().map(|found| OfferedPorts::of(found));
    let theirs = exchange(control, ports.map_err(Clone::clone)).await?;
    let ours = found?;
    let pairs = match end {
        TaskEnd::Dialer => ranked(&ours, &theirs),
        TaskEnd::Listener => Vec::new(),
    };
    let mut pairs: Vec<(u8, u8)> = swap(control, &pairs).await.map(|told| match end {
        TaskEnd::Dialer => pairs,
        TaskEnd::Listener => told,
    })?;
    pairs.truncate(MAX_PAIRS);
    if pairs.is_empty() {
        return Err(networks_differ(&ours, theirs.offers.as_slice()));
    }
    let marks = PacketMarks {
        traffic_class: config.traffic_class,
        service_level: config.service_level,
        pkey_index: config.pkey_index,
    };
    let mut proofs = Vec::new();
    for (dialer, listener) in pairs {
        let (our, their) = match end {
            TaskEnd::Dialer => (dialer, listener),
            TaskEnd::Listener => (listener, dialer),
        };
        let pair = Pair::new(end, &ours, &theirs, our.into(), their.into());
        let pair = pair.ok_or("the other end has named a port that does not exist")?;
        let ([short, long], limits) = pair.prove(marks, control).await;
        // Shows that the control connection is still there, if the pair has failed.
        let other_limits = swap(control, &limits).await?;
        let limits = limits.zip(other_limits);
        let limits = limits.map(|(ours, theirs)| match end {
            TaskEnd::Dialer => together(ours, theirs),
            TaskEnd::Listener => together(theirs, ours),
        });
        proofs.push(pair.proof(short, long, limits));
    }
    Ok(TaskResult::Ports(proofs))
}

/// Reads the ports of this host that may be used.
async fn candidates(config: &RdmaConfig) -> Result<Vec<Candidate>, String> {
    let choice = DeviceChoice {
        device: config.device.clone(),
        port: config.port,
        gid_index: config.gid_index,
        pkey_index: config.pkey_index,
    };
    let read = threads::blocking(move || choice.candidates(&inventory()));
    read.await
        .map_err(unstarted)?
        .map_err(|none| none.to_string())
}

/// Returns the pairs of ports by their positions in the two lists, as a stream would try them.
fn ranked(ours: &[Candidate], theirs: &OfferedPorts) -> Vec<(u8, u8)> {
    let theirs = theirs.offers.as_slice();
    let offers = Offers::of(ours);
    let pairs = rank(Role::Dialer, ours, theirs);
    let pairs = to_try(&pairs, offers.as_slice(), theirs, MAX_PAIRS);
    let small = |(i, j)| Some((u8::try_from(i).ok()?, u8::try_from(j).ok()?));
    pairs.into_iter().filter_map(small).collect()
}

impl OfferedPorts {
    fn of(candidates: &[Candidate]) -> Self {
        let named = candidates.iter().take(MAX_OFFERS).map(|candidate| {
            let port = VerbsPort {
                device: candidate.device.clone(),
                port: candidate.port,
                gid_index: candidate.gid_index,
            };
            (port, candidate.to_string())
        });
        Self {
            offers: Offers::of(candidates),
            named: named.collect(),
        }
    }
}

impl From<OfferedPorts> for WirePorts {
    fn from(ports: OfferedPorts) -> Self {
        (ports.offers, ports.named)
    }
}

impl TryFrom<WirePorts> for OfferedPorts {
    type Error = &'static str;

    fn try_from((offers, named): WirePorts) -> Result<Self, Self::Error> {
        if offers.as_slice().len() != named.len() {
            return Err("some ports have no name");
        }
        Ok(Self { offers, named })
    }
}

/// A pair of ports, seen from one end.
struct Pair {
    end: TaskEnd,
    ours: (VerbsPort, String),
    theirs: (VerbsPort, String),
    shares_network: bool,
    is_roce_v2: bool,
    mtu: u16,
}

impl Pair {
    /// Returns none if one of the lists has no such position.
    fn new(
        end: TaskEnd,
        ours: &[Candidate],
        theirs: &OfferedPorts,
        our: usize,
        their: usize,
    ) -> Option<Self> {
        let candidate = ours.get(our)?;
        let (offer, other) = (&candidate.offer, theirs.offers.as_slice().get(their)?);
        let named = OfferedPorts::of(ours).named.swap_remove(our);
        let has_kind = |kind| offer.kind == kind && other.kind == kind;
        Some(Self {
            end,
            ours: named,
            theirs: theirs.named.get(their)?.clone(),
            // Ports of two InfiniBand subnets are no pair.
            shares_network: has_kind(GidKind::InfiniBand) || share_network(offer, other),
            is_roce_v2: has_kind(GidKind::RoceV2),
            mtu: candidate.path_mtu(other),
        })
    }

    /// Sends a short and a long message there and back. Returns their times, and what this end can do if it has a queue
    /// pair.
    async fn prove(
        &self,
        marks: PacketMarks,
        control: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> ([MessageTime; 2], Option<EndpointLimits>) {
        let long = PACKETS * u32::from(self.mtu) + 1;
        let plan = EndpointPlan {
            end: self.end,
            port: self.ours.0.clone(),
            mtu: self.mtu,
            size: long,
            sizes: SIZES,
            wait: WaitMode::Event,
            marks,
        };
        let endpoint = match connect(control, plan, SIZES.receives).await {
            Ok(endpoint) => endpoint,
            Err(text) => return ([Err(text.clone()), Err(text)], None),
        };
        let limits = endpoint.limits();
        let times = match exchange_message(self.end, endpoint, SHORT, control).await {
            Ok((endpoint, time)) => {
                let message = exchange_message(self.end, endpoint, long, control).await;
                [Ok(time), message.map(|(_, time)| time)]
            }
            Err(text) => {
                let unsent = "not sent, because the short message has failed".to_owned();
                [Err(text), Err(unsent)]
            }
        };
        (times, limits)
    }

    fn proof(
        self,
        short: MessageTime,
        long: MessageTime,
        limits: Option<VerbsLimits>,
    ) -> PortPairProof {
        let (dialer, listener) = match self.end {
            TaskEnd::Dialer => (self.ours, self.theirs),
            TaskEnd::Listener => (self.theirs, self.ours),
        };
        PortPairProof {
            dialer: dialer.0,
            dialer_text: dialer.1,
            listener: listener.0,
            listener_text: listener.1,
            shares_network: self.shares_network,
            is_roce_v2: self.is_roce_v2,
            mtu: self.mtu,
            limits,
            short,
            long,
        }
    }
}

/// Returns what two ends can do together.
fn together(dialer: EndpointLimits, listener: EndpointLimits) -> VerbsLimits {
    VerbsLimits {
        inline_bytes: dialer.inline_bytes.min(listener.inline_bytes),
        reads: dialer.reads_begun.min(listener.reads_answered),
    }
}

/// Sends one message there and back. Returns the time, which the end that listens is told.
async fn exchange_message(
    end: TaskEnd,
    endpoint: VerbsEndpoint,
    bytes: u32,
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<(VerbsEndpoint, u64), String> {
    let lost =
        || format!("the {bytes} bytes arrived at the end that listens, but did not come back");
    match end {
        TaskEnd::Dialer => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                let time = ask(endpoint, bytes, signal);
                let number = time.as_ref().map_or(0, |time| *time);
                Ok((time, number))
            };
            let done = run(control, endpoint, SILENCE, work).await?;
            match done.result {
                Ok(time) => Ok((done.endpoint, time)),
                Err(text) if done.told > 0 => Err(format!("{}: {text}", lost())),
                Err(text) => Err(text),
            }
        }
        TaskEnd::Listener => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                let has_arrived = reply(endpoint, bytes, signal)?;
                Ok((has_arrived, u64::from(has_arrived)))
            };
            let done = run(control, endpoint, SILENCE, work).await?;
            match (done.told, done.result) {
                (0, true) => Err(lost()),
                (0, false) => Err("nothing has arrived".to_owned()),
                (time, _) => Ok((done.endpoint, time)),
            }
        }
    }
}

/// Sends a message, and waits until it has come back.
fn ask(endpoint: &mut VerbsEndpoint, bytes: u32, signal: &RunSignal) -> MessageTime {
    let sent_at = Instant::now();
    endpoint.post(Verb::Send, bytes, true)?;
    let patience = &mut Patience::new(signal, LIMIT);
    endpoint.wait(CompletionSide::Receives, patience)?;
    let time = nanos(sent_at.elapsed());
    endpoint.check_arrived(bytes)?;
    // A time of 0 tells the other end that there was no answer.
    Ok(time.max(1))
}

/// Waits for a message, and sends it back. Returns false if the other end has given up before it arrived.
fn reply(endpoint: &mut VerbsEndpoint, bytes: u32, signal: &RunSignal) -> Result<bool, String> {
    // The other end gives up first, and tells that.
    let patience = &mut Patience::new(signal, 2 * LIMIT);
    while signal.number().is_none() {
        if endpoint.next(CompletionSide::Receives, patience)?.is_some() {
            endpoint.check_arrived(bytes)?;
            endpoint.post(Verb::Send, bytes, true)?;
            return Ok(true);
        }
    }
    Ok(false)
}
