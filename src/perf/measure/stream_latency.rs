//! The time of a message there and back through a stream.

use std::{io, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    pending_streams::{PendingStreams, broken, used_transport},
    round_trips::RoundTrips,
};
use crate::{
    Stream, StreamConfig,
    perf::messages::{LatencyResult, LatencyTask, TaskEnd, TaskFault, TaskResult, WaitMode},
};

/// The longest time that a stream polls: the most that [`RdmaConfig::busy_poll`](crate::RdmaConfig::busy_poll) allows.
const BUSY_POLL: Duration = Duration::from_millis(10);

/// Returns the settings of a stream that waits in this way. Over TCP they make no difference.
pub(super) fn settings(config: StreamConfig, wait: WaitMode) -> StreamConfig {
    let mut config = config;
    match wait {
        WaitMode::Adaptive => {}
        WaitMode::Event => config.rdma.busy_poll = Some(Duration::ZERO),
        WaitMode::Busy => config.rdma.busy_poll = Some(BUSY_POLL),
    }
    // A credit reaches the sender without a change of threads.
    config.control_runtime = None;
    config
}

/// Sends messages there and back, at one end.
pub(super) async fn measure(
    pending: &mut PendingStreams,
    end: TaskEnd,
    task: LatencyTask,
    peer: &str,
) -> Result<TaskResult, TaskFault> {
    let (thread, stream) = pending.connect_one().await?;
    let transport = used_transport(&stream);
    let measured = match end {
        TaskEnd::Dialer => thread.run(ping(stream, task)).await,
        TaskEnd::Listener => thread.run(echo(stream, task)).await,
    };
    let mut result = measured.map_err(|error| broken(&error, peer))?;
    result.transport = Some(transport);
    Ok(TaskResult::Latency(result))
}

/// Sends messages, and waits for each of them to come back.
async fn ping(mut stream: Stream, task: LatencyTask) -> io::Result<LatencyResult> {
    let mut message = vec![0_u8; task.size as usize];
    let mut answer = vec![0; task.size as usize];
    let mut trips = RoundTrips::begin(Duration::from_millis(task.millis.into()));
    loop {
        message[0] = message[0].wrapping_add(1);
        stream.write_all(&message).await?;
        stream.read_exact(&mut answer).await?;
        if message != answer {
            return Err(io::Error::other("a message came back changed"));
        }
        if !trips.next() {
            break;
        }
    }
    let result = trips.result();
    stream.finish().await?;
    stream.close().await;
    Ok(result)
}

/// Sends every message back, until the other end has ended.
async fn echo(mut stream: Stream, task: LatencyTask) -> io::Result<LatencyResult> {
    let mut message = vec![0_u8; task.size as usize];
    let served = RoundTrips::begin(Duration::ZERO);
    loop {
        // A message can arrive in parts.
        match stream.read_exact(&mut message).await {
            Ok(_) => stream.write_all(&message).await?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    let result = served.result();
    stream.confirm()?;
    stream.shutdown().await?;
    stream.close().await;
    Ok(result)
}
