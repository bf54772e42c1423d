//! Connects the edges: from the first hello until every edge is connected.

use std::{fmt::Write, time::Duration};

use zeroize::Zeroize;

use super::{Phase, SupervisorMachine};
use crate::{
    reach,
    ssh::{
        outcome::Site,
        protocol::{
            AgentHello, EdgeId, EdgeLink, EdgeOrder, FaultKind, Order, PayloadError, ToAgent,
        },
        supervisor::{
            Action, Notice, SupervisedWork,
            edge_setup::{AddressBook, EdgeSetup, Next, Node},
        },
    },
};

impl<W: SupervisedWork> SupervisorMachine<W> {
    pub(super) fn hello(&mut self, now: Duration, agent: usize, hello: AgentHello) {
        if self.is_ending() {
            return;
        }
        if self.agents[agent].hello.is_some() {
            let text = "its agent reported its host twice".to_owned();
            return self.fail(now, Site::Agent(agent), FaultKind::Local, text, true);
        }
        // Other hosts connect to these addresses, so a hostile host must not choose any number of them.
        let hello = AgentHello {
            addresses: reach::usable(hello.addresses),
            ..hello
        };
        let addresses: Vec<_> = hello.addresses.iter().map(ToString::to_string).collect();
        self.notify(Notice::Detail(format!(
            "{} is on {}, which has the addresses {}",
            self.work.site(agent),
            hello.host,
            addresses.join(", ")
        )));
        self.agents[agent].hello = Some(hello);
        match self.order(agent) {
            Ok(order) => self.send(agent, ToAgent::Order(Box::new(order))),
            Err(error) => {
                let text = format!("its order cannot be sent: {error}");
                return self.fail(now, Site::Agent(agent), FaultKind::Local, text, true);
            }
        }
        for edge in 0..self.edges.len() {
            self.forget_key(edge);
            self.dial(edge);
        }
        self.begin();
    }

    /// Starts the work if every agent has its order and every edge is connected.
    fn begin(&mut self) {
        let stands = |setup: &Option<EdgeSetup>| setup.as_ref().is_none_or(EdgeSetup::stands);
        let is_ready = self.agents.iter().all(|agent| agent.hello.is_some());
        if self.phase == Phase::Connecting && is_ready && self.edges.iter().all(stands) {
            self.phase = Phase::Running;
            for agent in 0..self.agents.len() {
                self.send(agent, ToAgent::Go);
            }
            self.actions.push(Action::Go);
        }
    }

    /// Wipes the key of an edge if both of its ends have it.
    fn forget_key(&mut self, edge: usize) {
        let has_order = |node| match node {
            Node::Controller => true,
            Node::Agent(agent) => self.agents[agent].hello.is_some(),
        };
        let setup = self.edges[edge].as_ref();
        if setup.is_none_or(|setup| has_order(setup.from) && has_order(setup.to)) {
            self.keys[edge].zeroize();
        }
    }

    /// Returns the order for an agent.
    fn order(&self, agent: usize) -> Result<Order, PayloadError> {
        let edges = (0..self.edges.len()).filter_map(|edge| self.edge(agent, edge));
        let edges: Vec<_> = edges.collect();
        Ok(Order {
            name: self.work.site(agent),
            work: self.work.order(agent, &edges)?,
            edges,
            stream: self.settings.stream.clone(),
        })
    }

    /// Returns an agent's end of an edge, for its order, if the edge is one of the agent's.
    fn edge(&self, agent: usize, edge: usize) -> Option<EdgeOrder> {
        let own = Node::Agent(agent);
        let setup = self.edges[edge].as_ref()?;
        let setup = setup.touches(own).then_some(setup)?;
        let peer = if setup.to == own {
            setup.from
        } else {
            setup.to
        };
        Some(EdgeOrder {
            id: EdgeId::of_index(edge),
            direction: setup.direction(own),
            peer: self.name(peer),
            key: self.keys[edge].to_string(),
            listens: setup.listens(own),
        })
    }

    /// Returns the name of a node in messages.
    fn name(&self, node: Node) -> String {
        match node {
            Node::Controller => self.work.program().to_owned(),
            Node::Agent(agent) => self.work.site(agent),
        }
    }

    /// Returns the names of the two ends of an edge: the end that sends and the end that receives.
    fn ends(&self, edge: usize) -> (String, String) {
        let ends = self.edges[edge]
            .as_ref()
            .map(|setup| (setup.from, setup.to));
        ends.map_or_else(Default::default, |(from, to)| {
            (self.name(from), self.name(to))
        })
    }

    /// Returns the index and the state of an edge, or none if `node` is not one of its ends.
    fn edge_of(&mut self, edge: EdgeId, node: Node) -> Option<(usize, &mut EdgeSetup)> {
        let edge = edge.index();
        let setup = self.edges.get_mut(edge)?.as_mut()?;
        setup.touches(node).then_some((edge, setup))
    }

    pub(super) fn listening(&mut self, node: Node, edge: EdgeId, port: u16) {
        if let Some((edge, setup)) = self.edge_of(edge, node) {
            setup.listening(node, port);
            self.dial(edge);
        }
    }

    /// Requests that the edge be dialed, if both agents have sent their hello and one end listens.
    fn dial(&mut self, edge: usize) {
        let Some(setup) = &mut self.edges[edge] else {
            return;
        };
        let (dialer, listener) = (setup.dialer(), setup.listener());
        let is_there = |node| match node {
            Node::Controller => true,
            Node::Agent(agent) => self.agents[agent].hello.is_some(),
        };
        if self.phase != Phase::Connecting || !is_there(dialer) {
            return;
        }
        let Some(port) = setup.take_port() else {
            return;
        };
        let addresses = self.addresses(dialer, listener);
        let edge = EdgeId::of_index(edge);
        match dialer {
            Node::Agent(agent) => {
                let dial = ToAgent::Dial {
                    edge,
                    addresses,
                    port,
                };
                self.send(agent, dial);
            }
            Node::Controller => self.actions.push(Action::Dial {
                edge,
                addresses,
                port,
            }),
        }
    }

    /// Returns the addresses at which `dialer` can reach `listener`, the best first.
    fn addresses(&self, dialer: Node, listener: Node) -> Vec<String> {
        let Node::Agent(agent) = listener else {
            return Vec::new();
        };
        let there = self.machine(listener);
        AddressBook {
            given: &self.settings.addresses,
            here: self.settings.here.as_deref(),
        }
        .addresses(
            self.work.places()[agent],
            self.agents[agent].hello.as_ref(),
            there.is_some() && there == self.machine(dialer),
        )
    }

    /// Returns the identity of the node's network stack, if it is known.
    fn machine(&self, node: Node) -> Option<&str> {
        match node {
            Node::Controller => self.settings.machine.as_deref(),
            Node::Agent(agent) => self.agents[agent].hello.as_ref().map(|h| &*h.machine),
        }
    }

    pub(super) fn unreachable(
        &mut self,
        now: Duration,
        id: EdgeId,
        node: Node,
        tried: Vec<(String, String)>,
    ) {
        let Some((edge, setup)) = self.edge_of(id, node) else {
            return;
        };
        match setup.unreachable(node, tried) {
            Some(Next::Listen(Node::Agent(agent))) => {
                self.send(agent, ToAgent::Listen { edge: id });
            }
            Some(Next::Listen(Node::Controller) | Next::GiveUp) => {
                let text = self.blocked(edge);
                self.fail(now, Site::Edge(edge), FaultKind::Local, text, true);
            }
            None => {}
        }
    }

    /// Returns the message for an edge that cannot be connected in either direction. It names both ends, both ports
    /// and every address that was tried.
    fn blocked(&self, edge: usize) -> String {
        let (from, to) = self.ends(edge);
        let mut text = format!("{from} and {to} cannot reach each other");
        let name = |node| match node {
            Node::Controller => self.work.program().to_owned(),
            Node::Agent(agent) => self.work.places()[agent].to_string(),
        };
        let failed = self.edges[edge].as_ref().map_or(&[][..], |j| &j.failed);
        for attempt in failed {
            let tried: Vec<_> = attempt
                .tried
                .iter()
                .map(|(address, what)| format!("{address}: {what}"))
                .collect();
            let (dialer, listener) = (name(attempt.dialer), name(attempt.listener));
            let port = attempt.port;
            let _ = write!(text, "; from {dialer} to {listener}, port {port}: ");
            text += &tried.join(", ");
        }
        text + " (-p PORT-PORT sets the ports to open in a firewall, --addr HOST=ADDR sets the address of a host)"
    }

    pub(super) fn connected(&mut self, edge: EdgeId, node: Node, link: EdgeLink) {
        let Some((edge, setup)) = self.edge_of(edge, node) else {
            return;
        };
        let EdgeLink {
            transport,
            reason,
            is_fallback,
            address,
        } = link.clone();
        let was_fallback = setup.link.as_ref().is_some_and(|link| link.is_fallback);
        let is_first = setup.connected(node, link);
        let (from, to) = self.ends(edge);
        if is_fallback && !was_fallback {
            let text = format!("from {from} to {to} the data goes over TCP: {reason}");
            self.notify(Notice::Note(text));
        } else if is_first {
            let text = format!("{from} to {to}: {transport} ({reason}), {address}");
            self.notify(Notice::Detail(text));
        }
        self.begin();
    }
}
