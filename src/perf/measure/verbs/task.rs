//! A measurement with verbs, from the first message to the last one: as many operations as possible, or one there and
//! one back.
//!
//! | verb | there and back | the message has arrived when |
//! |---|---|---|
//! | WRITE | a WRITE each way | its last byte is the number of the message |
//! | SEND | a SEND each way | a receive completes |
//! | READ | one READ, by the end that dials | the READ completes |
//!
//! The last byte of a WRITE or SEND is the number of the message in seven bits, so that it differs from the last byte
//! of the message before. The eighth bit marks the last message: the other end answers it, and then ends.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    endpoint::{CompletionSide, EndpointPlan, PacketMarks, VerbsEndpoint},
    run::{Finished, RunSignal, connect, run, serve},
};
use crate::{
    perf::{
        histogram::LatencyHistogram,
        messages::{
            BandwidthResult, HostLoad, LatencyResult, MAX_OPERATION_BYTES, NetworkCounters,
            TaskEnd, TaskResult, Verb, VerbsTask, WaitMode,
        },
    },
    transport::raw::{MTUS, QueueSizes},
};

/// The least number of receives that are posted for SENDs which come as fast as they can.
const LEAST_RECEIVES: u32 = 128;

/// Measures with verbs, as one of two ends that are connected by `control`. Both ends call it with the same task.
/// A wait without a result for `silence` fails. A device sends a lost operation again for some 4 s before it gives up.
/// The error says what failed, on which device, and if it was not this end, that it was the other one.
/// Dropping the future ends the measurement at both ends, if `control` is closed as well.
pub(crate) async fn measure_verbs(
    end: TaskEnd,
    task: &VerbsTask,
    silence: Duration,
    control: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<TaskResult, String> {
    check_task(task)?;
    let receives = receives(end, task);
    let endpoint = connect(control, plan(end, task, receives), receives).await?;
    let limit = Duration::from_millis(task.millis.into());
    let order = task.clone();
    match (task.is_pingpong, end, task.verb) {
        (false, TaskEnd::Dialer, _) => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                let result = post_operations(endpoint, &order, signal)?;
                let operations = result.operations;
                Ok((result, operations))
            };
            let done = run(control, endpoint, silence, work).await?;
            if task.verb == Verb::Read {
                done.endpoint.check_arrived(task.size)?;
            }
            Ok(TaskResult::Bandwidth(done.result))
        }
        (false, TaskEnd::Listener, Verb::Send) => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                Ok((receive_sends(endpoint, &order, signal)?, 0))
            };
            let Finished {
                endpoint, result, ..
            } = run(control, endpoint, silence, work).await?;
            endpoint.check_arrived(task.size)?;
            Ok(TaskResult::Bandwidth(result))
        }
        (true, TaskEnd::Dialer, _) => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                Ok((play(endpoint, &order, signal)?, 0))
            };
            let done = run(control, endpoint, silence, work).await?;
            done.endpoint
                .check_arrived(task.size - marked_bytes(task))?;
            Ok(TaskResult::Latency(done.result))
        }
        (true, TaskEnd::Listener, Verb::Write | Verb::Send) => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                Ok((answer(endpoint, &order, signal)?, 0))
            };
            let done = run(control, endpoint, silence, work).await?;
            done.endpoint
                .check_arrived(task.size - marked_bytes(task))?;
            Ok(TaskResult::Served)
        }
        (false, TaskEnd::Listener, Verb::Write) => {
            serve(control, limit, silence).await?;
            endpoint.check_arrived(task.size)?;
            Ok(TaskResult::Served)
        }
        (_, TaskEnd::Listener, Verb::Read) => {
            serve(control, limit, silence).await?;
            // The endpoint answers the READs up to here.
            drop(endpoint);
            Ok(TaskResult::Served)
        }
    }
}

/// Refuses a task that cannot be measured on any device.
fn check_task(task: &VerbsTask) -> Result<(), String> {
    let VerbsTask {
        size,
        depth,
        signal_every,
        ..
    } = *task;
    let fault = if size == 0 {
        "an operation has at least 1 byte".to_owned()
    } else if size > MAX_OPERATION_BYTES {
        format!("an operation has at most {MAX_OPERATION_BYTES} bytes, not {size}")
    } else if depth == 0 {
        "at least 1 operation is posted at once (the depth is 0)".to_owned()
    } else if signal_every == 0 || signal_every > depth {
        format!(
            "of 1 to {depth} operations, the depth, one makes a completion: {signal_every} is not possible"
        )
    } else if !MTUS.contains(&task.mtu) {
        format!("RDMA has no MTU of {} bytes", task.mtu)
    } else if task.wait == WaitMode::Adaptive {
        "a measurement with verbs either polls or sleeps: it has no adaptive waiting".to_owned()
    } else if task.is_pingpong && task.verb == Verb::Write && task.wait == WaitMode::Event {
        "a WRITE makes no event at the end that it arrives at: a ping-pong of WRITEs has to poll"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(fault)
}

fn plan(end: TaskEnd, task: &VerbsTask, receives: u32) -> EndpointPlan {
    let port = match end {
        TaskEnd::Dialer => &task.dialer,
        TaskEnd::Listener => &task.listener,
    };
    let is_inline = task.verb != Verb::Read && task.size <= task.inline_bytes;
    EndpointPlan {
        end,
        port: port.clone(),
        mtu: task.mtu,
        size: task.size,
        sizes: QueueSizes {
            sends: task.depth,
            receives: receives.max(1),
            inline_bytes: if is_inline { task.inline_bytes } else { 0 },
        },
        wait: task.wait,
        marks: PacketMarks::default(),
    }
}

/// Returns the number of receives that an end keeps posted.
fn receives(end: TaskEnd, task: &VerbsTask) -> u32 {
    match (task.verb, task.is_pingpong, end) {
        (Verb::Send, true, _) => RECEIVES,
        (Verb::Send, false, TaskEnd::Listener) => task.depth.saturating_mul(2).max(LEAST_RECEIVES),
        _ => 0,
    }
}

/// Returns the number of bytes at the end of a message that do not stay the same.
fn marked_bytes(task: &VerbsTask) -> u32 {
    u32::from(task.verb != Verb::Read)
}

/// Posts operations until the time has passed, and waits until all are complete. Blocks the thread.
/// Fails if an operation does, if none completes for too long, or if `signal` stops the measurement.
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
        endpoint.wait(CompletionSide::Sends, &mut signal.patience())?;
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
/// Fails if a receive does, if none completes for too long, or if `signal` stops the measurement.
pub(super) fn receive_sends(
    endpoint: &mut VerbsEndpoint,
    task: &VerbsTask,
    signal: &RunSignal,
) -> Result<BandwidthResult, String> {
    let mut run = Stopwatch::start();
    let (mut operations, mut bytes) = (0_u64, 0_u64);
    let mut patience = signal.patience();
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
        patience = signal.patience();
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
            load: HostLoad::default(),
            transport: None,
        }
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The bit that marks the last message.
const LAST: u8 = 0x80;

/// The receives that are posted for SENDs: there is one message at a time, and the receive for the next one is posted
/// while this one travels.
pub(super) const RECEIVES: u32 = 4;

/// Sends messages and waits for their answers until the time has passed. Blocks the thread.
/// Fails if an operation does, if no answer arrives for too long, or if `signal` stops the measurement.
pub(super) fn play(
    endpoint: &mut VerbsEndpoint,
    task: &VerbsTask,
    signal: &RunSignal,
) -> Result<LatencyResult, String> {
    let limit = Duration::from_millis(task.millis.into());
    let mut histogram = LatencyHistogram::default();
    let mut last_time = None;
    let run = Stopwatch::start();
    let mut sent_at = run.began();
    let mut number = 0_u64;
    loop {
        number += 1;
        let is_last = sent_at.duration_since(run.began()) >= limit;
        send_message(endpoint, task, number, is_last, signal)?;
        // The time of the message before is recorded while this one travels.
        if let Some(time) = last_time.take() {
            histogram.record(time);
        }
        wait_for_message(endpoint, task, number, signal)?;
        let arrived_at = Instant::now();
        last_time = Some(arrived_at.duration_since(sent_at));
        sent_at = arrived_at;
        if is_last {
            break;
        }
    }
    let (nanos, cpu_nanos) = run.nanos();
    if let Some(time) = last_time {
        histogram.record(time);
    }
    Ok(LatencyResult {
        histogram,
        nanos,
        cpu_nanos,
        transport: None,
    })
}

/// Answers messages until the last one. Blocks the thread.
/// Fails if an operation does, if no message arrives for too long, or if `signal` stops the measurement.
pub(super) fn answer(
    endpoint: &mut VerbsEndpoint,
    task: &VerbsTask,
    signal: &RunSignal,
) -> Result<(), String> {
    let mut number = 0_u64;
    loop {
        number += 1;
        let is_last = wait_for_message(endpoint, task, number, signal)?;
        send_message(endpoint, task, number, is_last, signal)?;
        if is_last {
            return Ok(());
        }
    }
}

fn send_message(
    endpoint: &mut VerbsEndpoint,
    task: &VerbsTask,
    number: u64,
    is_last: bool,
    signal: &RunSignal,
) -> Result<(), String> {
    while !endpoint.has_room() {
        endpoint.wait(CompletionSide::Sends, &mut signal.patience())?;
    }
    let is_signalled = (endpoint.posted() + 1) % u64::from(task.signal_every) == 0;
    if task.verb == Verb::Read {
        return endpoint.post(task.verb, task.size, true);
    }
    let mark = mark(number) | if is_last { LAST } else { 0 };
    endpoint.set_byte(task.size - 1, mark);
    endpoint.post(task.verb, task.size, is_signalled)?;
    if task.verb == Verb::Send && number > 1 {
        // In place of the receive that has completed.
        endpoint.post_receive(task.size)?;
    }
    Ok(())
}

/// Returns true if it was the last message.
fn wait_for_message(
    endpoint: &mut VerbsEndpoint,
    task: &VerbsTask,
    number: u64,
    signal: &RunSignal,
) -> Result<bool, String> {
    signal.check()?;
    let patience = &mut signal.patience();
    let (at, expected) = (task.size - 1, mark(number));
    let found = match task.verb {
        Verb::Read => {
            endpoint.wait(CompletionSide::Sends, patience)?;
            return Ok(false);
        }
        Verb::Write => endpoint.wait_byte(at, [expected, expected | LAST], patience)?,
        Verb::Send => {
            endpoint.wait(CompletionSide::Receives, patience)?;
            endpoint.arrived_byte(at)
        }
    };
    if found & !LAST != expected {
        return Err(format!(
            "message {number} has arrived changed: its last byte is {found}"
        ));
    }
    Ok(found & LAST != 0)
}

/// Returns the last byte of a message, which differs from that of the message before.
fn mark(number: u64) -> u8 {
    u8::try_from(number & u64::from(!LAST)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_a_message_differs_from_that_before_it() {
        for number in 1..1000 {
            assert_ne!(mark(number), mark(number - 1));
            assert_eq!(mark(number) & LAST, 0);
        }
    }
}
