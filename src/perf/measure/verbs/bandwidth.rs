//! As many operations as possible, from the end that dials.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{
    endpoint::{CompletionSide, VerbsEndpoint},
    run::{Patience, RunSignal, SILENCE},
};
use crate::perf::messages::{BandwidthResult, NetworkCounters, Verb, VerbsTask};

/// Posts operations until the time has passed, and waits until all are complete. Blocks the thread.
///
/// # Errors
///
/// An operation has failed, none has completed for too long, or `signal` stops the measurement.
pub(super) fn post_operations(
    endpoint: &mut VerbsEndpoint,
    task: &VerbsTask,
    signal: &RunSignal,
) -> Result<BandwidthResult, String> {
    let signal_every = u64::from(task.signal_every);
    let limit = Duration::from_millis(task.millis.into());
    let run = Stopwatch::start();
    let mut is_over = false;
    // Everything up to this operation makes a completion sooner or later.
    let mut signalled = 0;
    loop {
        while endpoint.has_room() && !(is_over && signalled == endpoint.posted()) {
            let number = endpoint.posted() + 1;
            let is_signalled = is_over || number % signal_every == 0;
            endpoint.post(task.verb, task.size, is_signalled)?;
            if is_signalled {
                signalled = number;
            }
        }
        if is_over && endpoint.completed() == endpoint.posted() {
            break;
        }
        endpoint.wait(CompletionSide::Sends, &mut Patience::new(signal, SILENCE))?;
        signal.check()?;
        is_over = is_over || run.elapsed() >= limit;
    }
    let operations = endpoint.posted();
    let bytes = operations * u64::from(task.size);
    let (bytes_sent, bytes_received) = match task.verb {
        Verb::Write | Verb::Send => (bytes, 0),
        Verb::Read => (0, bytes),
    };
    Ok(run.result(bytes_sent, bytes_received, operations))
}

/// Receives SENDs until the other end has told their number and all have arrived. Blocks the thread.
///
/// # Errors
///
/// A receive has failed, none has completed for too long, or `signal` stops the measurement.
pub(super) fn receive_sends(
    endpoint: &mut VerbsEndpoint,
    task: &VerbsTask,
    signal: &RunSignal,
) -> Result<BandwidthResult, String> {
    let mut run = Stopwatch::start();
    let (mut operations, mut bytes) = (0_u64, 0_u64);
    let mut patience = Patience::new(signal, SILENCE);
    while signal.number() != Some(operations) {
        let Some(received) = endpoint.next(CompletionSide::Receives, &mut patience)? else {
            continue;
        };
        endpoint.post_receive(task.size)?;
        signal.check()?;
        if operations == 0 {
            run = Stopwatch::start();
        }
        operations += 1;
        bytes += received as u64;
        patience = Patience::new(signal, SILENCE);
    }
    Ok(run.result(0, bytes, operations))
}

/// Measures time, and the processor time of this process.
pub(super) struct Stopwatch {
    began: Instant,
    cpu_before: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self {
            began: Instant::now(),
            cpu_before: cpu_time(),
        }
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the time since the start, and the processor time in it, in nanoseconds.
    pub(super) fn nanos(&self) -> (u64, u64) {
        let elapsed = self.elapsed();
        let cpu = cpu_time().saturating_sub(self.cpu_before);
        (nanos(elapsed), nanos(cpu))
    }

    fn result(&self, bytes_sent: u64, bytes_received: u64, operations: u64) -> BandwidthResult {
        let (nanos, cpu_nanos) = self.nanos();
        BandwidthResult {
            bytes_sent,
            bytes_received,
            operations,
            nanos,
            cpu_nanos,
            counters: NetworkCounters::default(),
            transport: None,
        }
    }
}

/// Returns a time in nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
