//! A recorder of the packets that cross networks, as tcpdump sees them: all of every interface but the loopback one.

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    thread::{self, JoinHandle},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with, sockopt},
};

use super::on_path::Tape;
use crate::support::programs::hosts::Network;

/// Packets that wait to be read. Those that do not fit are lost, and with them what a test looks for.
const QUEUE_BYTES: usize = 128 << 20;

/// The longest packet: the kernel passes on many segments as one.
const PACKET_BYTES: usize = 1 << 20;

/// A capture that runs.
pub(crate) struct Capture {
    tape: Tape,
    readers: Vec<(UnixStream, JoinHandle<()>)>,
}

impl Capture {
    /// Captures what the hosts of a network and ctl send and receive. Of guests it captures what crosses the bridge
    /// between them.
    pub(crate) fn start(network: &Network) -> Self {
        let tape = Tape::default();
        let hosts: Vec<_> = if network.is_of_guests() {
            Vec::new()
        } else {
            network.hosts().collect()
        };
        let places = hosts.iter().map(String::as_str).chain(["ctl"]);
        let readers = places.map(|host| {
            let socket = network.within(host, open).expect("root captures packets");
            let (end, ended) = UnixStream::pair().expect("a pair");
            let tape = tape.clone();
            (end, thread::spawn(move || read(&socket, &ended, &tape)))
        });
        Self {
            readers: readers.collect(),
            tape,
        }
    }

    /// Ends the capture, with all packets that have crossed before this call.
    pub(crate) fn end(self) -> Tape {
        for (mut end, reader) in self.readers {
            end.write_all(b"x").expect("the reader has not ended");
            reader.join().expect("the reader has not failed");
        }
        self.tape
    }
}

fn open() -> io::Result<OwnedFd> {
    let all = Some(eth::ALL);
    let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, all)?;
    sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES)?;
    Ok(socket)
}

/// Records packets until `ended` says that no more follow.
fn read(socket: &OwnedFd, ended: &UnixStream, tape: &Tape) {
    let mut packet = vec![0; PACKET_BYTES];
    loop {
        let mut events =
            [socket.as_fd(), ended.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut events, None).expect("poll");
        let is_last = !events[1].revents().is_empty();
        while let Ok((count, _)) = recv(socket, &mut packet[..], RecvFlags::DONTWAIT) {
            // The loopback interface has no addresses. What programs of one host say to each other crosses no network.
            if !packet.starts_with(&[0; 12]) {
                tape.record(&packet[..count]);
            }
        }
        if is_last {
            return;
        }
    }
}
