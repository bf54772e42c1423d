//! The time from the first packet of a connection to the first byte from the other end.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    clock::MeasureClock,
    pending_streams::{PendingStreams, broken, used_transport},
};
use crate::{
    Stream,
    perf::{
        histogram::LatencyHistogram,
        messages::{LatencyResult, TaskEnd, TaskFault, TaskResult},
    },
};

/// The dialer's byte that says that another connection follows.
const MORE: u8 = 1;

/// The dialer's byte that says that this is the last connection.
const LAST: u8 = 0;

/// Makes one connection after the other, at one end.
pub(super) async fn measure(
    pending: &mut PendingStreams,
    end: TaskEnd,
    time: Duration,
    peer: &str,
) -> Result<TaskResult, TaskFault> {
    let clock = MeasureClock::start();
    let mut histogram = LatencyHistogram::default();
    let mut transport = None;
    let mut is_last = false;
    while !is_last {
        let begun = Instant::now();
        let (thread, stream) = pending.connect_one().await?;
        transport.get_or_insert_with(|| used_transport(&stream));
        is_last = match end {
            TaskEnd::Dialer => {
                let is_last = Duration::from_nanos(clock.time().nanos) >= time;
                let arrived = thread.run(dialed(stream, is_last)).await;
                let arrived = arrived.map_err(|error| broken(&error, peer))?;
                histogram.record(arrived - begun);
                is_last
            }
            TaskEnd::Listener => {
                let accepted = thread.run(accepted(stream)).await;
                accepted.map_err(|error| broken(&error, peer))?
            }
        };
    }
    let time = clock.time();
    Ok(TaskResult::Latency(LatencyResult {
        histogram,
        nanos: time.nanos,
        cpu_nanos: time.cpu_nanos,
        transport,
    }))
}

/// Waits for the first byte of a connection. Returns when it arrived.
async fn dialed(mut stream: Stream, is_last: bool) -> io::Result<Instant> {
    stream.read_u8().await?;
    let arrived = Instant::now();
    stream.write_u8(if is_last { LAST } else { MORE }).await?;
    stream.shutdown().await?;
    stream.close().await;
    Ok(arrived)
}

/// Sends the first byte of a connection. Returns true if it is the last connection.
async fn accepted(mut stream: Stream) -> io::Result<bool> {
    stream.write_u8(MORE).await?;
    stream.shutdown().await?;
    let is_last = stream.read_u8().await? == LAST;
    stream.close().await;
    Ok(is_last)
}
