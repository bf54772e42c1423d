//! A measurement with verbs, from the first message to the last one.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    bandwidth::{post_operations, receive_sends},
    endpoint::{EndpointPlan, PacketMarks, VerbsEndpoint},
    pingpong::{RECEIVES, answer, play},
    run::{Finished, connect, run, serve},
};
use crate::{
    perf::messages::{MAX_OPERATION_BYTES, TaskEnd, TaskResult, Verb, VerbsTask, WaitMode},
    transport::raw::{MTUS, QueueSizes},
};

/// The least number of receives that are posted for SENDs which come as fast as they can.
const LEAST_RECEIVES: u32 = 128;

/// Measures with verbs, as one of two ends that are connected by `control`. Both ends call it with the same task.
///
/// # Errors
///
/// One sentence: what failed, on which device, and if it was not this end, that it was the other one.
///
/// # Cancel safety
///
/// Ends the measurement at both ends, if `control` is closed as well.
pub(crate) async fn measure_verbs(
    end: TaskEnd,
    task: &VerbsTask,
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
            let done = run(control, endpoint, work).await?;
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
            } = run(control, endpoint, work).await?;
            endpoint.check_arrived(task.size)?;
            Ok(TaskResult::Bandwidth(result))
        }
        (true, TaskEnd::Dialer, _) => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                Ok((play(endpoint, &order, signal)?, 0))
            };
            let done = run(control, endpoint, work).await?;
            done.endpoint
                .check_arrived(task.size - marked_bytes(task))?;
            Ok(TaskResult::Latency(done.result))
        }
        (true, TaskEnd::Listener, Verb::Write | Verb::Send) => {
            let work = move |endpoint: &mut VerbsEndpoint, signal: &_| {
                Ok((answer(endpoint, &order, signal)?, 0))
            };
            let done = run(control, endpoint, work).await?;
            done.endpoint
                .check_arrived(task.size - marked_bytes(task))?;
            Ok(TaskResult::Served)
        }
        (false, TaskEnd::Listener, Verb::Write) => {
            serve(control, limit).await?;
            endpoint.check_arrived(task.size)?;
            Ok(TaskResult::Served)
        }
        (_, TaskEnd::Listener, Verb::Read) => {
            serve(control, limit).await?;
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
