//! One operation there, and one back, again and again. The end that dials ends it.
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

use super::{
    bandwidth::Stopwatch,
    endpoint::{CompletionSide, VerbsEndpoint},
    run::{Patience, RunSignal, SILENCE},
};
use crate::perf::{
    histogram::LatencyHistogram,
    messages::{LatencyResult, Verb, VerbsTask},
};

/// The bit that marks the last message.
const LAST: u8 = 0x80;

/// The receives that are posted for SENDs: there is one message at a time, and the receive for the next one is posted
/// while this one travels.
pub(super) const RECEIVES: u32 = 4;

/// Sends messages and waits for their answers until the time has passed. Blocks the thread.
///
/// # Errors
///
/// An operation has failed, no answer has arrived for too long, or `signal` stops the measurement.
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
///
/// # Errors
///
/// An operation has failed, no message has arrived for too long, or `signal` stops the measurement.
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
        endpoint.wait(CompletionSide::Sends, &mut Patience::new(signal, SILENCE))?;
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
    let patience = &mut Patience::new(signal, SILENCE);
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
