//! Times: of a message there and back, over streams and over sockets without the protocol, and of a connection.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    connections::{PendingSockets, PendingStreams, SocketTerms, broken},
    counters::MeasureClock,
};
use crate::{
    Stream, StreamConfig,
    perf::{
        histogram::LatencyHistogram,
        messages::{LatencyResult, LatencyTask, TaskEnd, TaskFault, TaskResult, WaitMode},
    },
    ssh::edge::describe_link,
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
pub(super) async fn measure_streams(
    pending: &mut PendingStreams,
    end: TaskEnd,
    task: LatencyTask,
    peer: &str,
) -> Result<TaskResult, TaskFault> {
    let (thread, stream) = pending.connect_one().await?;
    let transport = describe_link(&stream);
    let measured = match end {
        TaskEnd::Dialer => thread.run(ping_stream(stream, task)).await,
        TaskEnd::Listener => thread.run(echo_stream(stream, task)).await,
    };
    let mut result = measured.map_err(|error| broken(&error, peer))?;
    result.transport = Some(transport);
    Ok(TaskResult::Latency(result))
}

/// Sends messages, and waits for each of them to come back.
async fn ping_stream(mut stream: Stream, task: LatencyTask) -> io::Result<LatencyResult> {
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
async fn echo_stream(mut stream: Stream, task: LatencyTask) -> io::Result<LatencyResult> {
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

/// Sends messages there and back, at one end. Blocks.
pub(super) fn measure_sockets(
    pending: &PendingSockets,
    end: TaskEnd,
    task: LatencyTask,
    terms: &SocketTerms,
) -> Result<TaskResult, TaskFault> {
    let sockets = pending.connect(terms)?;
    let Some(socket) = sockets.into_iter().next() else {
        return Err("the task has no connection".to_owned().into());
    };
    let measured = match end {
        TaskEnd::Dialer => ping_socket(socket, task, terms.silence),
        TaskEnd::Listener => echo_socket(socket, task, terms.silence),
    };
    let result = measured.map_err(|error| terms.broken(&error))?;
    Ok(TaskResult::Latency(result))
}

/// A socket that waits for bytes as a task says.
struct WaitingSocket {
    socket: TcpStream,
    is_busy: bool,
    silence: Duration,
}

impl WaitingSocket {
    fn new(socket: TcpStream, wait: WaitMode, silence: Duration) -> io::Result<Self> {
        let is_busy = wait == WaitMode::Busy;
        socket.set_nonblocking(is_busy)?;
        Ok(Self {
            socket,
            is_busy,
            silence,
        })
    }

    /// Sends all of a message. A message that does not fit into the socket's buffer waits for the other end.
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut rest = message;
        while !rest.is_empty() {
            let count = self.polling(|mut socket| socket.write(rest))?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Receives a message. Returns false at the end of the connection.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < message.len() {
            match self.polling(|mut socket| socket.read(&mut message[filled..]))? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(true)
    }

    /// Repeats a step of a busy socket until it succeeds. The clock is read only while nothing arrives.
    fn polling(&self, mut step: impl FnMut(&TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        let mut begun = None;
        loop {
            match step(&self.socket) {
                Err(error) if self.is_busy && error.kind() == io::ErrorKind::WouldBlock => {
                    let begun = begun.get_or_insert_with(Instant::now);
                    if begun.elapsed() >= self.silence {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}

/// Sends messages, and waits for each of them to come back.
fn ping_socket(
    socket: TcpStream,
    task: LatencyTask,
    silence: Duration,
) -> io::Result<LatencyResult> {
    let mut socket = WaitingSocket::new(socket, task.wait, silence)?;
    let mut message = vec![0_u8; task.size as usize];
    let mut answer = message.clone();
    let mut trips = RoundTrips::begin(Duration::from_millis(task.millis.into()));
    loop {
        message[0] = message[0].wrapping_add(1);
        socket.send(&message)?;
        if !socket.receive(&mut answer)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if message != answer {
            return Err(io::Error::other("a message came back changed"));
        }
        if !trips.next() {
            return Ok(trips.result());
        }
    }
}

/// Sends every message back, until the other end has ended.
fn echo_socket(
    socket: TcpStream,
    task: LatencyTask,
    silence: Duration,
) -> io::Result<LatencyResult> {
    let mut socket = WaitingSocket::new(socket, task.wait, silence)?;
    let mut message = vec![0_u8; task.size as usize];
    let served = RoundTrips::begin(Duration::ZERO);
    while socket.receive(&mut message)? {
        socket.send(&message)?;
    }
    Ok(served.result())
}

/// The part of the time in which messages are sent before any is counted, as a divisor: connections, caches and the
/// clocks of processors need some messages to settle.
const WARM_UP_PART: u32 = 10;

/// The times of messages there and back, one after the other.
pub(super) struct RoundTrips {
    histogram: LatencyHistogram,
    whole: Duration,
    /// True until the first message that counts.
    is_warming: bool,
    /// The end of the warm-up, or of the measurement.
    until: Instant,
    clock: MeasureClock,
    sent: Instant,
}

impl RoundTrips {
    /// Begins just before the first message is sent. Messages are counted for `whole`, after a warm-up.
    pub(super) fn begin(whole: Duration) -> Self {
        let clock = MeasureClock::start();
        let sent = Instant::now();
        Self {
            histogram: LatencyHistogram::default(),
            whole,
            is_warming: true,
            until: sent + whole / WARM_UP_PART,
            clock,
            sent,
        }
    }

    /// Counts a message that has come back. Returns true if another one follows.
    pub(super) fn next(&mut self) -> bool {
        let now = Instant::now();
        if self.is_warming {
            if now >= self.until {
                self.is_warming = false;
                self.clock = MeasureClock::start();
                // After the clock, which would else miss a part of the time if this thread lost the processor here.
                self.until = Instant::now() + self.whole;
            }
        } else {
            self.histogram.record(now - self.sent);
        }
        // The next message is sent at once.
        self.sent = now;
        self.is_warming || now < self.until
    }

    /// Returns the times, or those of an end that has only sent messages back.
    pub(super) fn result(self) -> LatencyResult {
        let time = self.clock.time();
        LatencyResult {
            histogram: self.histogram,
            nanos: time.nanos,
            cpu_nanos: time.cpu_nanos,
            transport: None,
        }
    }
}

/// The dialer's byte that says that another connection follows.
const MORE: u8 = 1;

/// The dialer's byte that says that this is the last connection.
const LAST: u8 = 0;

/// Makes one connection after the other, at one end.
pub(super) async fn measure_connects(
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
        transport.get_or_insert_with(|| describe_link(&stream));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_does_not_count() {
        let mut trips = RoundTrips::begin(Duration::from_millis(10));
        let mut count = 0_u64;
        while trips.next() {
            count += 1;
        }
        let result = trips.result();
        assert!(result.histogram.count() < count + 1, "{count}");
        assert!(result.histogram.count() > 0);
        assert!(result.nanos >= 10_000_000);
    }
}
