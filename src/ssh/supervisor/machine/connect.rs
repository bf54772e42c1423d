//! From the first hello to the moment when every edge stands.

use std::{fmt::Write, time::Duration};

use super::{
    super::{
        Action, Notice,
        edge::{Joint, Next, Node, index},
    },
    Machine, Phase,
};
use crate::ssh::{
    outcome::Site,
    plan::Place,
    protocol::{Edge, End, FaultKind, Hello, Link, Order, ToAgent},
};

impl Machine {
    pub(super) fn hello(&mut self, stage: usize, hello: Hello) {
        if self.is_ending() {
            return;
        }
        let addresses: Vec<_> = hello.addresses.iter().map(ToString::to_string).collect();
        self.tell(Notice::Detail(format!(
            "{} is on {}, which has the addresses {}",
            self.plan.site(stage),
            hello.host,
            addresses.join(", ")
        )));
        self.stages[stage].hello = Some(hello);
        let order = Order {
            number: u32::try_from(stage + 1).unwrap_or(u32::MAX),
            name: self.plan.name(stage),
            work: self.plan.stages[stage].work.clone(),
            input: self.edge(stage, End::Input),
            output: self.edge(stage, End::Output),
            stream: self.settings.stream.clone(),
            fsync: self.settings.fsync,
        };
        self.send(stage, ToAgent::Order(Box::new(order)));
        for edge in 0..self.joints.len() {
            self.dial(edge);
        }
    }

    /// An end of an edge, as its agent is told of it.
    fn edge(&self, stage: usize, end: End) -> Option<Edge> {
        let edge = index(stage, end);
        let joint = self.joints[edge].as_ref()?;
        let (from, to) = self.plan.ends(edge);
        Some(Edge {
            peer: if end == End::Input { from } else { to },
            key: self.keys[edge].clone(),
            listens: joint.listens(Node::Stage(stage)),
        })
    }

    pub(super) fn listening(&mut self, stage: usize, end: End, port: u16) {
        let edge = index(stage, end);
        if let Some(joint) = &mut self.joints[edge] {
            joint.listening(Node::Stage(stage), port);
            self.dial(edge);
        }
    }

    /// Has the edge dialled, once there is somebody at both ends.
    fn dial(&mut self, edge: usize) {
        let Some(joint) = &mut self.joints[edge] else {
            return;
        };
        let (dialler, listener) = (joint.dialler(), joint.listener());
        let is_there = |node| match node {
            Node::Own => true,
            Node::Stage(stage) => self.stages[stage].hello.is_some(),
        };
        if self.phase != Phase::Connecting || !is_there(dialler) {
            return;
        }
        let Some(port) = joint.take_port() else {
            return;
        };
        let addresses = self.addresses(dialler, listener);
        match dialler {
            Node::Stage(stage) => {
                let end = end_of(edge, stage);
                self.send(
                    stage,
                    ToAgent::Dial {
                        end,
                        addresses,
                        port,
                    },
                );
            }
            Node::Own => {
                let end = own_end(edge);
                self.actions.push(Action::Dial {
                    end,
                    addresses,
                    port,
                });
            }
        }
    }

    /// Where `dialler` may find `listener`, the best first.
    fn addresses(&self, dialler: Node, listener: Node) -> Vec<String> {
        let Node::Stage(stage) = listener else {
            return Vec::new();
        };
        let place = &self.plan.stages[stage].place;
        if let Place::Host { host, .. } = place {
            let given = &self.settings.addresses;
            if let Some(given) = given.iter().find(|given| given.host == *host) {
                return given.addresses.clone();
            }
        }
        let mut addresses = Vec::new();
        let there = self.machine(listener);
        if there.is_some() && there == self.machine(dialler) {
            addresses.push("127.0.0.1".to_owned());
        }
        let hello = self.stages[stage].hello.as_ref();
        let said = hello.map_or(&[][..], |hello| &hello.addresses);
        let said = said.iter().map(ToString::to_string);
        match place {
            // The user knows better than the machine which of its addresses is good.
            Place::Here => addresses.extend(self.settings.here.clone().into_iter().chain(said)),
            Place::Host { host, .. } => addresses.extend(said.chain([host.clone()])),
        }
        let mut unique = Vec::with_capacity(addresses.len());
        for address in addresses {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        unique
    }

    /// Which machine that is.
    fn machine(&self, node: Node) -> Option<&str> {
        match node {
            Node::Own => self.settings.machine.as_deref(),
            Node::Stage(stage) => self.stages[stage].hello.as_ref().map(|h| &*h.machine),
        }
    }

    pub(super) fn unreachable(
        &mut self,
        now: Duration,
        edge: usize,
        node: Node,
        tried: Vec<(String, String)>,
    ) {
        let Some(joint) = &mut self.joints[edge] else {
            return;
        };
        match joint.unreachable(node, tried) {
            Some(Next::Listen(Node::Stage(stage))) => {
                let end = end_of(edge, stage);
                self.send(stage, ToAgent::Listen { end });
            }
            Some(Next::Listen(Node::Own) | Next::GiveUp) => {
                let text = self.blocked(edge);
                self.fail(now, Site::Edge(edge), FaultKind::Own, text, true);
            }
            None => {}
        }
    }

    /// Which two, which ports, and what was tried.
    fn blocked(&self, edge: usize) -> String {
        let (from, to) = self.plan.ends(edge);
        let mut text = format!("{from} and {to} cannot reach each other");
        let name = |node| match node {
            Node::Own => self.plan.program().to_owned(),
            Node::Stage(stage) => self.plan.stages[stage].place.to_string(),
        };
        let failed = self.joints[edge].as_ref().map_or(&[][..], |j| &j.failed);
        for attempt in failed {
            let tried: Vec<_> = attempt
                .tried
                .iter()
                .map(|(address, what)| format!("{address}: {what}"))
                .collect();
            let (dialler, listener) = (name(attempt.dialler), name(attempt.listener));
            let port = attempt.port;
            let _ = write!(text, "; from {dialler} to {listener}, port {port}: ");
            text += &tried.join(", ");
        }
        text + " (-p PORT-PORT pins the ports for a firewall, --addr HOST=ADDR says where a host is)"
    }

    pub(super) fn connected(&mut self, edge: usize, node: Node, link: Link) {
        let Some(joint) = &mut self.joints[edge] else {
            return;
        };
        let Link {
            transport,
            reason,
            is_fallback,
            address,
        } = link.clone();
        let was_fallback = joint.link.as_ref().is_some_and(|link| link.is_fallback);
        let is_first = joint.connected(node, link);
        let (from, to) = self.plan.ends(edge);
        if is_fallback && !was_fallback {
            let text = format!("from {from} to {to} the data goes over TCP: {reason}");
            self.tell(Notice::Note(text));
        } else if is_first {
            let text = format!("{from} to {to}: {transport} ({reason}), {address}");
            self.tell(Notice::Detail(text));
        }
        let stands = |joint: &Option<Joint>| joint.as_ref().is_none_or(Joint::stands);
        if self.phase == Phase::Connecting && self.joints.iter().all(stands) {
            self.phase = Phase::Running;
            for stage in 0..self.stages.len() {
                self.send(stage, ToAgent::Go);
            }
            self.actions.push(Action::Go);
        }
    }
}

/// Which of its ends the edge is for a stage that it touches.
fn end_of(edge: usize, stage: usize) -> End {
    if edge == stage {
        End::Input
    } else {
        End::Output
    }
}

/// Which of rdpipe's own the edge is.
fn own_end(edge: usize) -> End {
    if edge == 0 { End::Input } else { End::Output }
}
