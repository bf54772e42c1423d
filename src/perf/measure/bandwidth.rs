//! Bytes per second, over streams of this crate and over TCP sockets without its protocol.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use super::{
    connections::{
        PendingSockets, PendingStreams, PlacedStream, SocketTerms, broken, start_thread,
    },
    counters::{self, LoadClock, MeasureClock},
};
use crate::{
    Direction, ReadHalf, Stream, WriteHalf,
    carry::CarryThread,
    perf::messages::{
        BandwidthResult, BandwidthTask, NetworkCounters, TaskEnd, TaskFault, TaskResult, Traffic,
    },
    ssh::{edge::describe_link, protocol::EdgeLink},
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
pub(super) async fn measure_streams(
    pending: &mut PendingStreams,
    end: TaskEnd,
    task: BandwidthTask,
    peer: &str,
) -> Result<TaskResult, TaskFault> {
    let streams = pending.connect().await?;
    let direction = direction(task.traffic, end);
    let transport = streams.first().map(|(_, stream)| describe_link(stream));
    let clocks = Clocks::start();
    let time = Duration::from_millis(task.millis.into());
    let moving = streams
        .into_iter()
        .map(|placed| carry_stream(placed, direction, time, peer));
    let moved = try_join_all(moving).await?;
    Ok(clocks.result(&moved, transport))
}

/// What an end counts while it measures.
struct Clocks {
    before: NetworkCounters,
    load: LoadClock,
    time: MeasureClock,
}

impl Clocks {
    fn start() -> Self {
        Self {
            before: counters::snapshot(),
            load: LoadClock::start(),
            time: MeasureClock::start(),
        }
    }

    /// Returns the result of an end. `moved` has the bytes that each of its streams sent and received.
    fn result(&self, moved: &[(u64, u64)], transport: Option<EdgeLink>) -> TaskResult {
        let time = self.time.time();
        TaskResult::Bandwidth(BandwidthResult {
            bytes_sent: moved.iter().map(|(sent, _)| sent).sum(),
            bytes_received: moved.iter().map(|(_, received)| received).sum(),
            operations: 0,
            nanos: time.nanos,
            cpu_nanos: time.cpu_nanos,
            counters: counters::growth(&self.before, &counters::snapshot()),
            load: self.load.load(),
            transport,
        })
    }
}

/// Carries the bytes of one stream. Returns the bytes sent and the bytes received.
async fn carry_stream(
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
    let sent = send_bytes(Stream::split(&mut stream).1, time).await?;
    stream.close().await;
    Ok(sent)
}

async fn receive_only(mut stream: Stream) -> io::Result<u64> {
    let received = receive_bytes(Stream::split(&mut stream).0).await?;
    stream.close().await;
    Ok(received)
}

async fn both(
    (receiver, sender): (CarryThread, CarryThread),
    stream: Stream,
    time: Duration,
) -> io::Result<(u64, u64)> {
    let (mut read, mut write) = stream.into_split();
    let outgoing = sender.run(async move { (send_bytes(&mut write, time).await, write) });
    let incoming = receiver.run(async move { (receive_bytes(&mut read).await, read) });
    let ((sent, write_half), (arrived, read_half)) = tokio::join!(outgoing, incoming);
    let moved = (sent?, arrived?);
    if let Ok(stream) = read_half.reunite(write_half) {
        stream.close().await;
    }
    Ok(moved)
}

/// Sends for so long. Returns the number of bytes when the other end has confirmed them.
async fn send_bytes(stream: &mut WriteHalf, time: Duration) -> io::Result<u64> {
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
async fn receive_bytes(stream: &mut ReadHalf) -> io::Result<u64> {
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

/// The size of a write and of a read, as in iperf3.
const BLOCK_BYTES: usize = 128 << 10;

/// Sends and receives as fast as the sockets can, at one end. Blocks.
pub(super) fn measure_sockets(
    pending: &PendingSockets,
    end: TaskEnd,
    task: BandwidthTask,
    terms: &SocketTerms,
) -> Result<TaskResult, TaskFault> {
    let sockets = pending.connect(terms)?;
    let direction = direction(task.traffic, end);
    let time = Duration::from_millis(task.millis.into());
    let clocks = Clocks::start();
    let moved = thread::scope(|scope| {
        let threads: Vec<_> = sockets
            .iter()
            .map(|socket| {
                let carrying = move || carry_socket(socket, direction, time);
                let started = thread::Builder::new().spawn_scoped(scope, carrying);
                // The threads that have started end with their sockets.
                started.inspect_err(|_| shut_down(&sockets))
            })
            .collect();
        let ended = threads.into_iter().map(|thread| match thread?.join() {
            Ok(moved) => moved,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<io::Result<Vec<_>>>()
    });
    let moved = moved.map_err(|error| terms.broken(&error))?;
    Ok(clocks.result(&moved, None))
}

/// Ends both directions of all sockets.
fn shut_down(sockets: &[TcpStream]) {
    for socket in sockets {
        let _ = socket.shutdown(Shutdown::Both);
    }
}

/// Carries the bytes of one socket. Returns the bytes sent and the bytes received.
fn carry_socket(
    socket: &TcpStream,
    direction: Direction,
    time: Duration,
) -> io::Result<(u64, u64)> {
    match direction {
        Direction::Send => {
            let sent = send_over(socket, time)?;
            receive_over(socket)?;
            Ok((sent, 0))
        }
        Direction::Receive => {
            let received = receive_over(socket)?;
            socket.shutdown(Shutdown::Write)?;
            Ok((0, received))
        }
        Direction::Both => thread::scope(|scope| {
            let sending = thread::Builder::new().spawn_scoped(scope, || send_over(socket, time))?;
            let received = receive_over(socket)?;
            match sending.join() {
                Ok(sent) => Ok((sent?, received)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }),
    }
}

/// Sends for so long, and then the end of this direction.
fn send_over(mut socket: &TcpStream, time: Duration) -> io::Result<u64> {
    let bytes = vec![0x5a; BLOCK_BYTES];
    let started = Instant::now();
    let mut sent = 0;
    while started.elapsed() < time {
        socket.write_all(&bytes)?;
        sent += bytes.len() as u64;
    }
    socket.shutdown(Shutdown::Write)?;
    Ok(sent)
}

/// Receives up to the end. Returns the number of bytes.
fn receive_over(mut socket: &TcpStream) -> io::Result<u64> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut received = 0;
    loop {
        match socket.read(&mut bytes)? {
            0 => return Ok(received),
            count => received += count as u64,
        }
    }
}
