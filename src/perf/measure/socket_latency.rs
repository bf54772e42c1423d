//! The time of a message there and back through a TCP socket.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{
    round_trips::RoundTrips,
    sockets::{PendingSockets, SocketTerms},
};
use crate::perf::messages::{LatencyResult, LatencyTask, TaskEnd, TaskFault, TaskResult, WaitMode};

/// Sends messages there and back, at one end. Blocks.
pub(super) fn measure(
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
        TaskEnd::Dialer => ping(socket, task, terms.silence),
        TaskEnd::Listener => echo(socket, task, terms.silence),
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
fn ping(socket: TcpStream, task: LatencyTask, silence: Duration) -> io::Result<LatencyResult> {
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
fn echo(socket: TcpStream, task: LatencyTask, silence: Duration) -> io::Result<LatencyResult> {
    let mut socket = WaitingSocket::new(socket, task.wait, silence)?;
    let mut message = vec![0_u8; task.size as usize];
    let served = RoundTrips::begin(Duration::ZERO);
    while socket.receive(&mut message)? {
        socket.send(&message)?;
    }
    Ok(served.result())
}
