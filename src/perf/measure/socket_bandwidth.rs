//! Bytes per second of TCP sockets, from memory to memory.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::{
    clock::MeasureClock,
    counters,
    sockets::{PendingSockets, SocketTerms},
    stream_bandwidth::direction,
};
use crate::{
    Direction,
    perf::messages::{BandwidthResult, BandwidthTask, TaskEnd, TaskFault, TaskResult},
};

/// The size of a write and of a read, as in iperf3.
const BLOCK_BYTES: usize = 128 << 10;

/// Sends and receives as fast as the sockets can, at one end. Blocks.
pub(super) fn measure(
    pending: &PendingSockets,
    end: TaskEnd,
    task: BandwidthTask,
    terms: &SocketTerms,
) -> Result<TaskResult, TaskFault> {
    let sockets = pending.connect(terms)?;
    let direction = direction(task.traffic, end);
    let time = Duration::from_millis(task.millis.into());
    let before = counters::snapshot();
    let clock = MeasureClock::start();
    let moved = thread::scope(|scope| {
        let threads: Vec<_> = sockets
            .iter()
            .map(|socket| {
                let carrying = move || carry(socket, direction, time);
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
    let time = clock.time();
    Ok(TaskResult::Bandwidth(BandwidthResult {
        bytes_sent: moved.iter().map(|(sent, _)| sent).sum(),
        bytes_received: moved.iter().map(|(_, received)| received).sum(),
        operations: 0,
        nanos: time.nanos,
        cpu_nanos: time.cpu_nanos,
        counters: counters::growth(&before, &counters::snapshot()),
        transport: None,
    }))
}

/// Ends both directions of all sockets.
fn shut_down(sockets: &[TcpStream]) {
    for socket in sockets {
        let _ = socket.shutdown(Shutdown::Both);
    }
}

/// Carries the bytes of one socket. Returns the bytes sent and the bytes received.
fn carry(socket: &TcpStream, direction: Direction, time: Duration) -> io::Result<(u64, u64)> {
    match direction {
        Direction::Send => {
            let sent = send(socket, time)?;
            receive(socket)?;
            Ok((sent, 0))
        }
        Direction::Receive => {
            let received = receive(socket)?;
            socket.shutdown(Shutdown::Write)?;
            Ok((0, received))
        }
        Direction::Both => thread::scope(|scope| {
            let sending = thread::Builder::new().spawn_scoped(scope, || send(socket, time))?;
            let received = receive(socket)?;
            match sending.join() {
                Ok(sent) => Ok((sent?, received)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }),
    }
}

/// Sends for so long, and then the end of this direction.
fn send(mut socket: &TcpStream, time: Duration) -> io::Result<u64> {
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
fn receive(mut socket: &TcpStream) -> io::Result<u64> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut received = 0;
    loop {
        match socket.read(&mut bytes)? {
            0 => return Ok(received),
            count => received += count as u64,
        }
    }
}
