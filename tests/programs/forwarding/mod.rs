//! rdforward between processes of this machine and between hosts of namespaces, over TCP: listeners, commands, tickets,
//! servers, and what ends a tunnel.

mod commands;
mod conversations;
mod crowds;
mod ends;
#[cfg(feature = "fault-injection")]
mod hostile;
mod listeners;
mod streams;
pub(crate) mod without_ssh;

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

use crate::support::programs::{Running, Setup, generous, local_hosts::Hosts, program};

pub(crate) fn rdforward(arguments: &[&str]) -> Setup {
    program(env!("CARGO_BIN_EXE_rdforward"), "rdforward").args(arguments)
}

/// Starts a server on a thread, which sends back what it receives. Returns its port.
pub(crate) fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            thread::spawn(move || {
                let mut back = socket.try_clone().unwrap();
                let _ = io::copy(&mut socket, &mut back);
                let _ = back.shutdown(Shutdown::Write);
            });
        }
    });
    port
}

pub(crate) fn tunnel(hosts: &Hosts, arguments: &[&str]) -> Setup {
    hosts
        .rdforward(&["--transport", "tcp"])
        .args(arguments)
        .arg("h1")
}

/// Returns the port that rdforward has chosen and printed, at this place: "here" or "on the other host".
#[track_caller]
pub(crate) fn port(running: &Running, place: &str) -> u16 {
    running.said("a port", |text| {
        let line = text
            .lines()
            .find(|line| line.ends_with(place) && line.contains("listening at "))?;
        let (_, at) = line.split_once("listening at ")?;
        at.split(' ').next()?.rsplit(':').next()?.parse().ok()
    })
}

/// Connects to a port of this machine. No read waits forever.
#[track_caller]
pub(crate) fn connect(port: u16) -> TcpStream {
    try_connect(port).unwrap()
}

fn try_connect(port: u16) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    socket.set_read_timeout(Some(generous()))?;
    Ok(socket)
}

/// Sends bytes and an end, and returns what comes back.
pub(crate) fn exchange(mut socket: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut writing = socket.try_clone().unwrap();
    let sent = bytes.to_vec();
    let writer = thread::spawn(move || {
        writing.write_all(&sent).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    socket.read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    back
}

/// Checks that the next read of a socket finds a reset, and no end.
#[track_caller]
pub(crate) fn is_reset(mut socket: TcpStream) {
    let error = socket.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

/// Checks that a connection to a port of this machine is reset. `connect` itself fails if the reset comes at once.
#[track_caller]
pub(crate) fn resets(port: u16) {
    let end = try_connect(port).and_then(|mut socket| socket.read(&mut [0]));
    let kind = end.map_err(|error| error.kind());
    assert_eq!(kind, Err(io::ErrorKind::ConnectionReset));
}

/// Returns a connection through the tunnel that has carried a byte there and back.
pub(crate) fn used(port: u16) -> TcpStream {
    let mut socket = connect(port);
    socket.write_all(b"x").unwrap();
    let mut byte = [0];
    socket.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
    socket
}
