//! How one edge comes to stand: who listens, who dials, and who does when that fails. No I/O.

use crate::ssh::protocol::EdgeLink;

/// What an edge leads from or to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// The controller itself: rdpipe or rdcat.
    Controller,
    /// This stage.
    Stage(usize),
}

/// An edge on its way to being connected.
#[derive(Debug)]
pub(crate) struct EdgeSetup {
    /// The end that sends.
    pub(crate) from: Node,
    /// The end that receives.
    pub(crate) to: Node,
    /// Whose turn it is to listen.
    listener: Node,
    /// The listener's port, from its `Listening` until the dialler was told.
    port: Option<u16>,
    /// Attempts that failed.
    pub(crate) failed: Vec<Attempt>,
    last_port: u16,
    connected: [bool; 2],
    /// What carries the edge, once one end is connected.
    pub(crate) link: Option<EdgeLink>,
}

/// One end that could not reach the other.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    /// The end that dialled.
    pub(crate) dialler: Node,
    /// The end that listened.
    pub(crate) listener: Node,
    /// The port of the listener.
    pub(crate) port: u16,
    /// Each address, and what happened there.
    pub(crate) tried: Vec<(String, String)>,
}

/// What comes after an attempt that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// This one is to listen now.
    Listen(Node),
    /// Both ways are closed.
    GiveUp,
}

impl EdgeSetup {
    /// Returns an edge that nothing was done for yet. The controller never listens: it may sit behind NAT.
    pub(crate) fn new(from: Node, to: Node) -> Self {
        let listener = if to == Node::Controller { from } else { to };
        Self {
            from,
            to,
            listener,
            port: None,
            failed: Vec::new(),
            last_port: 0,
            connected: [false; 2],
            link: None,
        }
    }

    /// Returns true if `node` is one of the two ends.
    pub(crate) fn touches(&self, node: Node) -> bool {
        self.from == node || self.to == node
    }

    /// Whether `node` listens from the start.
    pub(crate) fn listens(&self, node: Node) -> bool {
        self.failed.is_empty() && self.listener == node
    }

    /// Who dials at present.
    pub(crate) fn dialler(&self) -> Node {
        if self.listener == self.from {
            self.to
        } else {
            self.from
        }
    }

    /// Who listens at present.
    pub(crate) fn listener(&self) -> Node {
        self.listener
    }

    /// The listener is ready. Words of the other end are out of date.
    pub(crate) fn listening(&mut self, node: Node, port: u16) {
        if node == self.listener {
            self.port = Some(port);
        }
    }

    /// The port for the dialler, once.
    pub(crate) fn take_port(&mut self) -> Option<u16> {
        let port = self.port.take()?;
        self.last_port = port;
        Some(port)
    }

    /// The dialler got nowhere; none if it was not `node`'s turn.
    pub(crate) fn unreachable(&mut self, node: Node, tried: Vec<(String, String)>) -> Option<Next> {
        if node != self.dialler() {
            return None;
        }
        self.failed.push(Attempt {
            dialler: node,
            listener: self.listener,
            port: self.last_port,
            tried,
        });
        if self.failed.len() > 1 || node == Node::Controller {
            return Some(Next::GiveUp);
        }
        self.listener = node;
        Some(Next::Listen(node))
    }

    /// This end stands. True when it is the first of the two.
    pub(crate) fn connected(&mut self, node: Node, link: EdgeLink) -> bool {
        self.connected[usize::from(node == self.to)] = true;
        let first = self.link.is_none();
        if first || link.is_fallback {
            self.link = Some(link);
        }
        first
    }

    /// Whether both ends stand.
    pub(crate) fn stands(&self) -> bool {
        self.connected == [true; 2]
    }
}
