//! How one edge is connected: the addresses at which hosts reach each other, which end listens, which end dials, and
//! how they swap if that fails. Pure, no I/O.
//!
//! The reader listens and the writer dials, except on the last edge: the controller never listens, since it may sit
//! behind NAT. The dialer gets these addresses, without repetition:
//!
//! 1. the addresses of `--addr` for that host, if there are any, and no others; else
//! 2. 127.0.0.1, if both are on one machine;
//! 3. for a `:` stage, the address of `-H`;
//! 4. the addresses in the listener's Hello: first the one at which ssh reached the host, then IPv4, then IPv6; at most
//!    16, and no loopback or link-local addresses. The controller filters them again, takes one Hello from each agent
//!    and one port for each attempt, because a hostile host could make all others connect to any number of addresses;
//! 5. the host's name as it was typed (not for `:`).
//!
//! The dialer probes all addresses at once, with bare TCP connections (`reach::probes`), and makes the handshake where
//! one answers: it proves that this is the peer and not another host with the same private address. A wrong version, a
//! refused direction or a refused transport is final. If no address has the peer, the two ends swap once. If that fails
//! too, or if the controller was the dialer, the edge goes through ssh: the end that has dialed last connects to a relay
//! at 127.0.0.1. If that is impossible too, the run fails, and the message names both hosts, both ports and every address.

use crate::{
    Direction,
    ssh::{
        plan::{Addresses, StageHost},
        protocol::{AgentHello, EdgeLink},
    },
};

/// One end of an edge: the process that sends into it or receives from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// The controller itself: rdpipe, rdcat or rdcp.
    Controller,
    Agent(usize),
}

/// An edge on its way to being connected.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is another question")]
pub(crate) struct EdgeSetup {
    /// The end that sends.
    pub(crate) from: Node,
    /// The end that receives.
    pub(crate) to: Node,
    /// Whether both ends send and receive.
    is_two_way: bool,
    /// The end that listens in the current attempt.
    listener: Node,
    /// Whether the ends never swap.
    is_fixed: bool,
    /// The port of the listener, from its `Listening` until the dialer has received it.
    port: Option<u16>,
    /// Whether the listener of the current attempt has reported its port.
    has_listened: bool,
    /// Whether the connections go through ssh in the current attempt.
    is_relayed: bool,
    pub(crate) failed: Vec<Attempt>,
    last_port: u16,
    connected: [bool; 2],
    /// What carries the edge, once one end is connected.
    pub(crate) link: Option<EdgeLink>,
}

/// An attempt to connect an edge in which one end could not reach the other.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    /// The end that dialed.
    pub(crate) dialer: Node,
    /// The end that listened.
    pub(crate) listener: Node,
    pub(crate) port: u16,
    /// Each address, and how the attempt to connect to it failed.
    pub(crate) tried: Vec<(String, String)>,
}

/// The next step after an attempt that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The ends swap: this end listens now.
    Listen(Node),
    /// The edge cannot be connected in either direction.
    GiveUp,
}

/// The attempts for one edge without ssh: each end dials once.
const MOST_ATTEMPTS: usize = 2;

impl EdgeSetup {
    /// Returns an edge before its first attempt: the receiver listens. On an edge to the controller the sender
    /// listens, because the controller may sit behind NAT and never listens.
    pub(crate) fn new(from: Node, to: Node) -> Self {
        let listener = if to == Node::Controller { from } else { to };
        Self {
            from,
            to,
            is_two_way: false,
            listener,
            is_fixed: false,
            port: None,
            has_listened: false,
            is_relayed: false,
            failed: Vec::new(),
            last_port: 0,
            connected: [false; 2],
            link: None,
        }
    }

    /// Returns an edge on which both ends send and receive, before its first attempt: `to` listens.
    pub(crate) fn two_way(from: Node, to: Node) -> Self {
        Self {
            is_two_way: true,
            ..Self::new(from, to)
        }
    }

    /// Returns the edge with `node` as the end that listens, in every attempt.
    pub(crate) fn listening_only_at(self, node: Node) -> Self {
        Self {
            listener: node,
            is_fixed: true,
            ..self
        }
    }

    /// Returns the direction of the edge, seen from the end `node`.
    pub(crate) fn direction(&self, node: Node) -> Direction {
        if self.is_two_way {
            Direction::Both
        } else if self.to == node {
            Direction::Receive
        } else {
            Direction::Send
        }
    }

    /// Returns true if `node` is one of the two ends.
    pub(crate) fn touches(&self, node: Node) -> bool {
        self.from == node || self.to == node
    }

    /// Returns true if `node` listens from the start.
    pub(crate) fn listens(&self, node: Node) -> bool {
        self.failed.is_empty() && self.listener == node
    }

    /// Returns the end that dials in the current attempt.
    pub(crate) fn dialer(&self) -> Node {
        if self.listener == self.from {
            self.to
        } else {
            self.from
        }
    }

    /// Returns the end that listens in the current attempt.
    pub(crate) fn listener(&self) -> Node {
        self.listener
    }

    /// Records the port on which `node` listens. A message from the end that does not listen any more is ignored, and
    /// so is a second port: the dialer connects to one port in each attempt, whatever the listener sends. The port of a
    /// relay is not the listener's.
    pub(crate) fn listening(&mut self, node: Node, port: u16) {
        if node == self.listener && !self.has_listened && !self.is_relayed {
            self.has_listened = true;
            self.port = Some(port);
        }
    }

    /// Lets the connections go through ssh from now on. Returns the port of the end that listens.
    pub(crate) fn relay(&mut self) -> u16 {
        self.is_relayed = true;
        self.has_listened = false;
        self.last_port
    }

    /// Records the port of 127.0.0.1 at which the relay listens. Returns true the first time.
    pub(crate) fn relay_listens(&mut self, port: u16) -> bool {
        let is_first = self.is_relayed && !self.has_listened;
        if is_first {
            (self.has_listened, self.last_port) = (true, port);
        }
        is_first
    }

    /// Returns true if the connections go through ssh.
    pub(crate) fn is_relayed(&self) -> bool {
        self.is_relayed
    }

    /// Returns the port for the dialer. Each port is returned once.
    pub(crate) fn take_port(&mut self) -> Option<u16> {
        let port = self.port.take()?;
        self.last_port = port;
        Some(port)
    }

    /// Records that `node` could not reach the listener, and returns the next step. Returns none if `node` is not the
    /// end that dials, or no attempt is left.
    pub(crate) fn unreachable(&mut self, node: Node, tried: Vec<(String, String)>) -> Option<Next> {
        let most = MOST_ATTEMPTS + usize::from(self.is_relayed);
        if node != self.dialer() || self.failed.len() >= most {
            return None;
        }
        self.failed.push(Attempt {
            dialer: node,
            listener: self.listener,
            port: self.last_port,
            tried,
        });
        let is_last = self.is_fixed || self.is_relayed || self.failed.len() >= MOST_ATTEMPTS;
        if is_last || node == Node::Controller {
            return Some(Next::GiveUp);
        }
        self.listener = node;
        self.has_listened = false;
        Some(Next::Listen(node))
    }

    /// Records that the end `node` is connected. Returns true if it is the first of the two ends.
    pub(crate) fn connected(&mut self, node: Node, link: EdgeLink) -> bool {
        self.connected[usize::from(node == self.to)] = true;
        let first = self.link.is_none();
        if first || link.is_fallback {
            self.link = Some(link);
        }
        first
    }

    /// Returns true if both ends are connected.
    pub(crate) fn stands(&self) -> bool {
        self.connected == [true; 2]
    }
}

/// What the user has said about addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressBook<'a> {
    /// The values of `--addr`.
    pub(crate) given: &'a [Addresses],
    /// The value of `-H`: the address at which other hosts reach this machine.
    pub(crate) here: Option<&'a str>,
}

impl AddressBook<'_> {
    /// Returns the addresses of `place` for another host, the best first. `hello` has what its agent has reported.
    /// `is_same_machine`: the two share one network stack.
    pub(crate) fn addresses(
        &self,
        place: &StageHost,
        hello: Option<&AgentHello>,
        is_same_machine: bool,
    ) -> Vec<String> {
        if let Some(host) = place.host()
            && let Some(given) = self.given.iter().find(|given| given.host == host)
        {
            return given.addresses.clone();
        }
        let mut addresses = Vec::new();
        if is_same_machine {
            addresses.push("127.0.0.1".to_owned());
        }
        let said = hello.map_or(&[][..], |hello| &hello.addresses);
        let said = said.iter().map(ToString::to_string);
        match place {
            // The address that the user gave with -H comes before those that the machine reports itself.
            StageHost::Here => {
                addresses.extend(self.here.map(str::to_owned).into_iter().chain(said));
            }
            StageHost::Host { host, .. } => addresses.extend(said.chain([host.clone()])),
            // The name led to the server, so it comes first. Its own addresses may be those of another network.
            StageHost::Server { host, .. } => {
                addresses.extend(std::iter::once(host.clone()).chain(said));
            }
        }
        let mut unique = Vec::with_capacity(addresses.len());
        for address in addresses {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        unique
    }
}
