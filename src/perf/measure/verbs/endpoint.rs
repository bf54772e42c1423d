//! A queue pair with its memory, and the counts of its operations.
//!
//! ```text
//! memory:   [ bytes that are sent, or read by the peer | bytes that arrive ]
//!             0                                          half
//! ```
//!
//! Both ends have the same layout. A WRITE goes from the first half into the second half of the peer, a READ from the
//! first half of the peer into the second half, and a SEND arrives in the second half.

use std::{io, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::run::Patience;
use crate::{
    perf::messages::{TaskEnd, Verb, VerbsPort, WaitMode},
    transport::raw::{
        Completion, CompletionQueue, MemoryRegion, OperationKind, PairFault, ProtectionDomain,
        QueuePair, QueuePairAddress, QueuePairConfig, QueueSizes, RemoteRegion, VerbsOperation,
        most_inline, random_psn,
    },
};

/// The alignment of the second half of the memory: a line of the processor's cache.
const LINE_BYTES: usize = 64;

/// How long a thread sleeps before it looks whether it may wait on.
const SLEEP: Duration = Duration::from_millis(50);

/// What an endpoint is made of.
#[derive(Debug, Clone)]
pub(super) struct EndpointPlan {
    pub(super) end: TaskEnd,
    pub(super) port: VerbsPort,
    /// The MTU of the path in bytes.
    pub(super) mtu: u16,
    /// The size of the longest operation in bytes.
    pub(super) size: u32,
    pub(super) sizes: QueueSizes,
    pub(super) wait: WaitMode,
    pub(super) marks: PacketMarks,
}

/// The marks of each packet, and the partition.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PacketMarks {
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
    pub(super) pkey_index: u16,
}

/// What the other end has to know about an endpoint.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct EndpointFacts {
    address: QueuePairAddress,
    /// The first packet sequence number, 24 bits.
    psn: u32,
    region: RemoteRegion,
    /// The number of READs that the endpoint answers at once.
    answered_reads: u8,
}

/// What the device of an endpoint can do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct EndpointLimits {
    /// The most bytes that a work request can carry inline.
    pub(super) inline_bytes: u32,
    /// The most READs of this end that are under way at once.
    pub(super) reads_begun: u8,
    /// The most READs of the other end that this end answers at once.
    pub(super) reads_answered: u8,
}

/// The most bytes inline that are looked for. Devices carry some 200 to 1,000.
const MOST_INLINE: u32 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompletionSide {
    Sends,
    Receives,
}

/// A queue pair with its memory.
pub(super) struct VerbsEndpoint {
    pair: QueuePair,
    sends: Arc<CompletionQueue>,
    receives: Arc<CompletionQueue>,
    config: QueuePairConfig,
    plan: EndpointPlan,
    /// Where the second half of the memory begins.
    half: usize,
    peer: RemoteRegion,
    posted: u64,
    completed: u64,
}

impl VerbsEndpoint {
    /// Opens the device, and makes a queue pair. Blocks the thread.
    pub(super) fn open(plan: EndpointPlan) -> Result<Self, String> {
        let device = &plan.port.device;
        let failed = |what: &str| {
            let what = format!("cannot {what} {device}");
            move |error: io::Error| format!("{what}: {error}")
        };
        let domain = ProtectionDomain::open(device).map_err(failed("open"))?;
        let domain = Arc::new(domain);
        let half = (plan.size as usize).next_multiple_of(LINE_BYTES);
        let bytes = 2 * half;
        let memory = MemoryRegion::register_shared(&domain, bytes)
            .map_err(failed(&format!("register {bytes} bytes of memory with")))?;
        let region = memory.remote();
        let QueueSizes {
            sends, receives, ..
        } = plan.sizes;
        let queue = |length| {
            let made = CompletionQueue::new(&domain, length);
            made.map(Arc::new)
                .map_err(failed("make a completion queue on"))
        };
        let (send_queue, receive_queue) = (queue(sends)?, queue(receives)?);
        let config = config(&plan);
        let queues = [&send_queue, &receive_queue];
        let pair = QueuePair::exact(queues, memory, &config, plan.sizes);
        let pair = pair.map_err(|fault| match fault {
            PairFault::Inline { most } => format!(
                "a work request of {device} carries at most {most} bytes inline, not {}",
                plan.sizes.inline_bytes
            ),
            PairFault::Device(error) => {
                let what = format!(
                    "make a queue pair for {sends} sends and {receives} receives on port {} of",
                    plan.port.port
                );
                failed(&what)(error)
            }
        })?;
        let mut endpoint = Self {
            pair,
            sends: send_queue,
            receives: receive_queue,
            config,
            half,
            peer: region,
            posted: 0,
            completed: 0,
            plan,
        };
        let sent = pattern(endpoint.plan.end, endpoint.plan.size);
        endpoint.pair.write(0, &sent);
        Ok(endpoint)
    }

    /// Returns what the other end has to know.
    /// Fails if the device has no such port or address.
    pub(super) fn facts(&self) -> Result<EndpointFacts, String> {
        let VerbsPort {
            device,
            port,
            gid_index,
        } = &self.plan.port;
        let failed = |error| {
            format!("cannot read the address of {device} port {port}, GID {gid_index}: {error}")
        };
        Ok(EndpointFacts {
            address: self.pair.address(&self.config).map_err(failed)?,
            psn: self.config.send_psn,
            region: self.pair.remote(),
            answered_reads: self.pair.read_depths().map_err(failed)?.answered,
        })
    }

    /// Returns what the device can do; none if it does not tell. Makes queue pairs to find it out.
    pub(super) fn limits(&self) -> Option<EndpointLimits> {
        let queues = [&self.sends, &self.receives];
        let reads = self.pair.read_depths().ok()?;
        Some(EndpointLimits {
            inline_bytes: most_inline(queues, self.plan.sizes, MOST_INLINE)?,
            reads_begun: reads.begun,
            reads_answered: reads.answered,
        })
    }

    /// Connects to the queue pair of the other end.
    /// Fails if the two ends do not match.
    pub(super) fn connect(&mut self, theirs: &EndpointFacts) -> Result<(), String> {
        self.config.receive_psn = theirs.psn;
        self.peer = theirs.region;
        let connected =
            self.pair
                .connect_for_reads(&self.config, theirs.address, theirs.answered_reads);
        connected.map_err(|error| {
            let VerbsPort { device, port, .. } = &self.plan.port;
            format!("cannot connect the queue pair of {device} port {port}: {error}")
        })
    }

    /// Posts an operation of `bytes`. Every operation needs room: see [`has_room`](Self::has_room).
    pub(super) fn post(
        &mut self,
        verb: Verb,
        bytes: u32,
        is_signalled: bool,
    ) -> Result<(), String> {
        let (kind, local_at, remote_at) = match verb {
            Verb::Write => (OperationKind::Write, 0, self.half),
            Verb::Send => (OperationKind::Send, 0, 0),
            Verb::Read => (OperationKind::Read, self.half, 0),
        };
        let id = self.posted + 1;
        let operation = VerbsOperation {
            kind,
            id,
            local: local_at..local_at + bytes as usize,
            remote_at,
            is_signalled,
            is_inline: kind != OperationKind::Read && bytes <= self.plan.sizes.inline_bytes,
        };
        let posted = self.pair.post(&operation, Some(&self.peer));
        posted.map_err(|error| self.failed(&error))?;
        self.posted = id;
        Ok(())
    }

    /// Posts a receive for a SEND of at most `bytes`.
    pub(super) fn post_receive(&mut self, bytes: u32) -> Result<(), String> {
        let range = self.half..self.half + bytes as usize;
        let posted = self.pair.post_receive(0, &range);
        posted.map_err(|error| self.failed(&error))
    }

    /// Returns true if another operation fits into the queue of sends.
    pub(super) fn has_room(&self) -> bool {
        self.posted - self.completed < u64::from(self.plan.sizes.sends)
    }

    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Looks once for a completion, and if there is none, waits a moment as the plan says. Returns the number of bytes
    /// if there is one, which for sends has no meaning.
    /// Fails if the operation does, or if `patience` ends.
    pub(super) fn next(
        &mut self,
        side: CompletionSide,
        patience: &mut Patience<'_>,
    ) -> Result<Option<usize>, String> {
        if let Some(bytes) = self.poll(side)? {
            return Ok(Some(bytes));
        }
        if self.plan.wait == WaitMode::Busy {
            if patience.has_polled()? && side == CompletionSide::Receives {
                self.poll(CompletionSide::Sends)?;
            }
            return Ok(None);
        }
        let queue = Arc::clone(self.queue(side));
        queue.arm().map_err(|error| self.failed(&error))?;
        // A completion that came before the queue was armed makes no event.
        if let Some(bytes) = self.poll(side)? {
            return Ok(Some(bytes));
        }
        let came = queue.wait_event(SLEEP);
        if !came.map_err(|error| self.failed(&error))? {
            patience.check()?;
            if side == CompletionSide::Receives {
                self.poll(CompletionSide::Sends)?;
            }
        }
        Ok(None)
    }

    /// Waits for a completion. Returns the number of bytes, which for sends has no meaning.
    /// Fails as [`next`](Self::next) does.
    pub(super) fn wait(
        &mut self,
        side: CompletionSide,
        patience: &mut Patience<'_>,
    ) -> Result<usize, String> {
        loop {
            if let Some(bytes) = self.next(side, patience)? {
                return Ok(bytes);
            }
        }
    }

    /// Takes the oldest completion off a queue. The completion of an operation completes those before it.
    fn poll(&mut self, side: CompletionSide) -> Result<Option<usize>, String> {
        let found = self.queue(side).poll_one();
        let found = found.map_err(|error| self.failed(&error))?;
        let Some(Completion { id, result }) = found else {
            return Ok(None);
        };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.failed(&self.cause(side).unwrap_or(error))),
        };
        if side == CompletionSide::Sends {
            self.completed = id;
        }
        Ok(Some(bytes))
    }

    /// Returns why a receive has failed: a send that failed before it has broken the queue pair.
    fn cause(&self, side: CompletionSide) -> Option<io::Error> {
        if side == CompletionSide::Sends {
            return None;
        }
        while let Ok(Some(completion)) = self.sends.poll_one() {
            if let Err(error) = completion.result {
                return Some(error);
            }
        }
        None
    }

    /// Waits until a byte that the peer writes is one of `wanted`, and returns it. Polls memory, not the completion
    /// queue.
    /// Fails if an own operation does, or if `patience` ends.
    pub(super) fn wait_byte(
        &mut self,
        at: u32,
        wanted: [u8; 2],
        patience: &mut Patience<'_>,
    ) -> Result<u8, String> {
        let at = self.half + at as usize;
        loop {
            let byte = self.pair.poll_byte(at);
            if wanted.contains(&byte) {
                return Ok(byte);
            }
            if patience.has_polled()? {
                self.poll(CompletionSide::Sends)?;
            }
        }
    }

    /// Writes one of the bytes that are sent.
    pub(super) fn set_byte(&mut self, at: u32, byte: u8) {
        self.pair.set_byte(at as usize, byte);
    }

    pub(super) fn arrived_byte(&self, at: u32) -> u8 {
        self.pair.poll_byte(self.half + at as usize)
    }

    /// Compares the first `bytes` that have arrived with those that the other end sends.
    /// The error names the first byte that differs.
    pub(super) fn check_arrived(&self, bytes: u32) -> Result<(), String> {
        let mut arrived = vec![0; bytes as usize];
        self.pair.read(self.half, &mut arrived);
        let other = match self.plan.end {
            TaskEnd::Dialer => TaskEnd::Listener,
            TaskEnd::Listener => TaskEnd::Dialer,
        };
        let expected = pattern(other, bytes);
        let differs = arrived.iter().zip(&expected).position(|(a, b)| a != b);
        differs.map_or(Ok(()), |at| {
            let device = &self.plan.port.device;
            Err(format!(
                "byte {at} of {bytes} bytes that arrived on {device} has changed on the way"
            ))
        })
    }

    fn queue(&self, side: CompletionSide) -> &Arc<CompletionQueue> {
        match side {
            CompletionSide::Sends => &self.sends,
            CompletionSide::Receives => &self.receives,
        }
    }

    fn failed(&self, error: &io::Error) -> String {
        let VerbsPort { device, port, .. } = &self.plan.port;
        format!("an operation on {device} port {port} has failed: {error}")
    }
}

fn config(plan: &EndpointPlan) -> QueuePairConfig {
    QueuePairConfig {
        device: plan.port.device.clone(),
        port: plan.port.port,
        gid_index: usize::from(plan.port.gid_index),
        mtu: u32::from(plan.mtu),
        send_psn: random_psn(),
        receive_psn: 0,
        depth: plan.sizes.sends,
        traffic_class: plan.marks.traffic_class,
        service_level: plan.marks.service_level,
        pkey_index: plan.marks.pkey_index,
    }
}

/// Returns the bytes that an end sends. No byte stays the same if it is moved by a packet, and none is that of the
/// other end.
fn pattern(end: TaskEnd, bytes: u32) -> Vec<u8> {
    let from = match end {
        TaskEnd::Dialer => 1,
        TaskEnd::Listener => 126,
    };
    let cycle = (0..=250_u8).map(|byte| (u16::from(byte) + from) % 251);
    let cycle: Vec<u8> = cycle.filter_map(|byte| u8::try_from(byte).ok()).collect();
    cycle.into_iter().cycle().take(bytes as usize).collect()
}
