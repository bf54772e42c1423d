//! The connections of the rails of a stream over several networks: which of them each rail uses, and how it goes on over
//! the next one.
//!
//! Each rail has one connection over its own network, and one in reserve over each of some others. When a connection or
//! its network is lost, the rail moves to its next connection whose network is not lost. Either end may begin. An end
//! that moves reads nothing more from the old connection, and tells the peer how far it has verified
//! ([`Message::Moved`]); the peer sends what follows again, over the new connection. If both begin at the same time with
//! different connections, both go on over the later one.

use std::{mem, net::IpAddr};

use super::{
    RailState, State,
    machine::{Receiving, StreamMachine},
};
use crate::{Fault, transport::control::message::Message};

/// Returns the number of the network that a connection of a rail uses, in a stream over `networks` networks.
pub(crate) fn network_of(rail: usize, connection: usize, networks: usize) -> usize {
    (rail + connection) % networks.max(1)
}

/// The networks of a stream that uses several, as addresses of the peer, and those that are lost.
#[derive(Default)]
pub(super) struct Networks {
    addresses: Vec<IpAddr>,
    lost: Vec<bool>,
    /// The number of connections of each rail: none over RDMA, where a rail finds and replaces a lost link itself.
    connections: usize,
}

/// The connections of one rail.
#[derive(Default)]
pub(super) struct Connections {
    /// The one that this end uses, or moves to.
    current: usize,
    /// The last one to which this end has told the peer that it has moved.
    told: usize,
    /// The last one to which the peer has moved, and the end of what it had verified.
    peer: (usize, u64),
}

impl Networks {
    /// Returns the next connection of a rail after `connection` whose network is not lost.
    fn next(&self, rail: usize, connection: usize) -> Option<usize> {
        let is_left = |next: &usize| !self.lost[network_of(rail, *next, self.lost.len())];
        (connection + 1..self.connections).find(is_left)
    }
}

impl StreamMachine {
    /// Has a rail use another connection than this one, which is lost. Returns false if none is left.
    fn leave_connection(&mut self, rail: usize, connection: usize) -> bool {
        if self.rails[rail].connections.current > connection {
            return true;
        }
        let next = self.networks.next(rail, connection);
        next.inspect(|next| self.move_rail(rail, *next)).is_some()
    }

    fn move_rail(&mut self, rail: usize, connection: usize) {
        self.rails[rail].connections.current = connection;
        self.rails[rail].wake(true, true);
        // While bytes may arrive, the frame receiver tells how many it has verified.
        if !matches!(self.receiving, Receiving::Open | Receiving::Fin(..)) {
            self.tell_moved(rail, connection, u64::MAX);
        }
    }

    fn tell_moved(&mut self, rail: usize, connection: usize, verified: u64) {
        let told = &mut self.rails[rail].connections.told;
        if *told >= connection || self.fault.is_some() || self.dropped.has_said_bye() {
            return;
        }
        *told = connection;
        let number = |number| u8::try_from(number).expect("a stream has few rails and connections");
        self.outbox.push(Message::Moved {
            rail: number(rail),
            connection: number(connection),
            verified,
        });
    }

    /// Handles the move of the peer to another connection of a rail.
    pub(super) fn follow_peer(
        &mut self,
        rail: usize,
        connection: usize,
        verified: u64,
    ) -> Result<(), &'static str> {
        if rail >= self.rails.len() || !(1..self.networks.connections).contains(&connection) {
            return Err("a move to a connection that does not exist");
        }
        let connections = &mut self.rails[rail].connections;
        if connection > connections.peer.0 {
            connections.peer = (connection, verified);
            if connection > connections.current {
                self.move_rail(rail, connection);
            }
            self.rails[rail].wake(true, false);
        }
        Ok(())
    }

    /// Records that a network is lost. Returns the addresses of those that are left; none if nothing changes.
    fn lose_network(&mut self, network: usize) -> Option<Vec<IpAddr>> {
        if self.fault.is_some() || self.done() {
            return None;
        }
        let Networks {
            addresses, lost, ..
        } = &mut self.networks;
        let is_left = |other: &usize| *other != network && !lost[*other];
        let left: Vec<_> = (0..lost.len()).filter(is_left).collect();
        let left: Vec<_> = left.into_iter().map(|left| addresses[left]).collect();
        if left.is_empty() || mem::replace(lost.get_mut(network)?, true) {
            return None;
        }
        let (networks, address) = (lost.len(), addresses[network]);
        for rail in 0..self.rails.len() {
            let current = self.rails[rail].connections.current;
            if self.networks.connections > 0
                && network_of(rail, current, networks) == network
                && !self.leave_connection(rail, current)
            {
                let text = format!("its network, that of {address}, is lost");
                self.suspect(Fault::Data(std::sync::Arc::new(std::io::Error::other(
                    text,
                ))));
            }
        }
        Some(left)
    }
}

impl State {
    /// Sets the networks of a stream that uses several, as addresses of the peer. Each rail has `connections`
    /// connections; none over RDMA.
    pub(crate) fn set_networks(&self, addresses: Vec<IpAddr>, connections: usize) {
        self.lock().networks = Networks {
            lost: vec![false; addresses.len()],
            addresses,
            connections,
        };
    }

    /// Returns true if this network is lost.
    pub(crate) fn is_network_lost(&self, network: usize) -> bool {
        let inner = self.lock();
        inner.networks.lost.get(network).is_some_and(|lost| *lost)
    }

    /// Has the control connection, and the rails whose connections use this network, go on over others. Returns the
    /// addresses of the peer in the lost network and in those that are left; none if the stream has ended, or has no
    /// other network.
    pub(crate) fn lose_network(&self, network: usize) -> Option<(IpAddr, Vec<IpAddr>)> {
        let mut inner = self.lock();
        let left = inner.lose_network(network);
        let lost = left.map(|left| (inner.networks.addresses[network], left));
        self.finish_update(inner);
        self.to_control.notify_one();
        lost
    }
}

impl RailState {
    /// Returns the number of the connection that this end uses.
    pub(crate) fn connection(&self) -> usize {
        self.lock().rails[self.rail].connections.current
    }

    /// Returns the end of what the peer had verified when it moved to this connection; none if it has not.
    pub(crate) fn verified_before(&self, connection: usize) -> Option<u64> {
        let (moved, verified) = self.lock().rails[self.rail].connections.peer;
        (moved == connection).then_some(verified)
    }

    /// Records that a connection is lost. Returns false if the rail has no other one left.
    pub(crate) fn lose_connection(&self, connection: usize) -> bool {
        let mut inner = self.lock();
        let has_other = inner.leave_connection(self.rail, connection);
        self.finish_update(inner);
        self.to_control.notify_one();
        has_other
    }

    /// Tells the peer that this end reads from this connection now, and has verified the bytes up to `verified` before.
    pub(crate) fn tell_moved(&self, connection: usize, verified: u64) {
        self.lock().tell_moved(self.rail, connection, verified);
        self.to_control.notify_one();
    }
}
