//! Bytes per second of streams, from memory to memory.

use std::{
    io,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use super::{
    clock::MeasureClock,
    counters,
    pending_streams::{PendingStreams, PlacedStream, broken, start_thread, used_transport},
};
use crate::{
    Direction, ReadHalf, Stream, WriteHalf,
    carry::thread::CarryThread,
    perf::messages::{BandwidthResult, BandwidthTask, TaskEnd, TaskFault, TaskResult, Traffic},
};

/// The size of a write. The source of the bytes stays in the processor's cache, so the measurement shows the stream and
/// not the memory.
const WRITE_BYTES: usize = 256 << 10;

/// Returns the direction of the streams, seen from one end.
pub(super) fn direction(traffic: Traffic, end: TaskEnd) -> Direction {
    match (traffic, end) {
        (Traffic::Both, _) => Direction::Both,
        (Traffic::Forward, TaskEnd::Dialer) | (Traffic::Backward, TaskEnd::Listener) => {
            Direction::Send
        }
        (Traffic::Forward, TaskEnd::Listener) | (Traffic::Backward, TaskEnd::Dialer) => {
            Direction::Receive
        }
    }
}

/// Sends and receives as fast as the streams can, at one end. An end that sends measures the time up to the moment when
/// the other end has confirmed the last byte.
pub(super) async fn measure(
    pending: &mut PendingStreams,
    end: TaskEnd,
    task: BandwidthTask,
    peer: &str,
) -> Result<TaskResult, TaskFault> {
    let streams = pending.connect().await?;
    let direction = direction(task.traffic, end);
    let transport = streams.first().map(|(_, stream)| used_transport(stream));
    let before = counters::snapshot();
    let clock = MeasureClock::start();
    let time = Duration::from_millis(task.millis.into());
    let moving = streams
        .into_iter()
        .map(|placed| carry(placed, direction, time, peer));
    let moved = try_join_all(moving).await?;
    let time = clock.time();
    Ok(TaskResult::Bandwidth(BandwidthResult {
        bytes_sent: moved.iter().map(|(sent, _)| sent).sum(),
        bytes_received: moved.iter().map(|(_, received)| received).sum(),
        operations: 0,
        nanos: time.nanos,
        cpu_nanos: time.cpu_nanos,
        counters: counters::growth(&before, &counters::snapshot()),
        transport,
    }))
}

/// Carries the bytes of one stream. Returns the bytes sent and the bytes received.
async fn carry(
    (thread, stream): PlacedStream,
    direction: Direction,
    time: Duration,
    peer: &str,
) -> Result<(u64, u64), TaskFault> {
    let moved = match direction {
        Direction::Send => {
            let sending = send_only(stream, time);
            thread.run(sending).await.map(|sent| (sent, 0))
        }
        Direction::Receive => {
            let receiving = receive_only(stream);
            thread.run(receiving).await.map(|received| (0, received))
        }
        Direction::Both => {
            // As in the programs, each direction has its thread.
            let sender = start_thread()?;
            both((thread, sender), stream, time).await
        }
    };
    moved.map_err(|error| broken(&error, peer))
}

async fn send_only(mut stream: Stream, time: Duration) -> io::Result<u64> {
    let sent = send(Stream::split(&mut stream).1, time).await?;
    stream.close().await;
    Ok(sent)
}

async fn receive_only(mut stream: Stream) -> io::Result<u64> {
    let received = receive(Stream::split(&mut stream).0).await?;
    stream.close().await;
    Ok(received)
}

async fn both(
    (receiver, sender): (CarryThread, CarryThread),
    stream: Stream,
    time: Duration,
) -> io::Result<(u64, u64)> {
    let (mut read, mut write) = stream.into_split();
    let outgoing = sender.run(async move { (send(&mut write, time).await, write) });
    let incoming = receiver.run(async move { (receive(&mut read).await, read) });
    let ((sent, write_half), (arrived, read_half)) = tokio::join!(outgoing, incoming);
    let moved = (sent?, arrived?);
    if let Ok(stream) = read_half.reunite(write_half) {
        stream.close().await;
    }
    Ok(moved)
}

/// Sends for so long. Returns the number of bytes when the other end has confirmed them.
async fn send(stream: &mut WriteHalf, time: Duration) -> io::Result<u64> {
    let bytes = vec![0x5a; WRITE_BYTES];
    let started = Instant::now();
    let mut sent = 0;
    while started.elapsed() < time {
        stream.write_all(&bytes).await?;
        sent += bytes.len() as u64;
    }
    stream.finish().await?;
    Ok(sent)
}

/// Receives up to the end of the stream, and confirms it. Returns the number of bytes.
async fn receive(stream: &mut ReadHalf) -> io::Result<u64> {
    let mut received = 0;
    loop {
        let count = stream.fill_buf().await?.len();
        if count == 0 {
            stream.confirm()?;
            return Ok(received);
        }
        stream.consume(count);
        received += count as u64;
    }
}
