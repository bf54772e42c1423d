//! The way to an agent: a process that leads to it, or a server that takes its place.

use std::time::Duration;

use super::{
    plan::launch::Launch,
    sealed::{self, SealedSession},
};
use crate::{
    Error, HandshakeFault, Key, OnDrop, StreamConfig, TransportPolicy, Watch, advice::Advised,
    connect,
};

/// The way to an agent.
#[derive(Clone)]
pub(crate) enum AgentRoute {
    /// A process on this machine: ssh, what replaces it, or the agent itself.
    Process(Launch),
    /// A server, to which this program connects.
    Server(ServerRoute),
}

/// The way to a server.
#[derive(Clone)]
pub(crate) struct ServerRoute {
    /// The host, as it was typed.
    pub(crate) host: String,
    /// The port of the server.
    pub(crate) port: u16,
    /// The key of this client.
    pub(crate) key: Key,
    /// The time after which the server counts as lost.
    pub(crate) timeout: Duration,
    /// What listens there.
    pub(crate) kind: ServerKind,
}

/// What listens at the end of a way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// `rdcp --serve`, which knows the keys of many clients.
    Copies,
    /// `rdperf --listen`, which waits for one peer with its ticket.
    Measurements,
}

impl AgentRoute {
    /// Returns the way as a user can read it.
    pub(crate) fn display(&self) -> String {
        match self {
            Self::Process(launch) => launch.display(),
            Self::Server(route) => format!("the server at {}:{}", route.host, route.port),
        }
    }
}

impl ServerRoute {
    /// Connects to the server, and returns an encrypted session and a watch on its stream.
    ///
    /// # Errors
    ///
    /// One sentence for the user.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it has opened.
    pub(crate) async fn connect(&self) -> Result<(SealedSession, Watch), String> {
        let config = session_config(self.timeout);
        let stream = connect((self.host.as_str(), self.port), &self.key, &config).await;
        let stream = stream.map_err(|error| self.refused(error))?;
        let watch = stream.watch();
        let sealed = sealed::of_dialer(stream, &self.key).await;
        let sealed = sealed.map_err(|error| format!("the server on {}: {error}", self.host))?;
        Ok((sealed, watch))
    }

    fn refused(&self, error: Error) -> String {
        let Self { host, port, .. } = self;
        let (unknown, program) = match self.kind {
            ServerKind::Copies => (
                "does not know this key; its --key-file needs the line of this client",
                "rdcp --serve",
            ),
            ServerKind::Measurements => ("has another ticket", "rdperf --listen"),
        };
        match error {
            Error::Handshake {
                fault: HandshakeFault::Key,
                ..
            } => format!("the server at {host}:{port} {unknown}"),
            Error::Connect { source, .. } => format!(
                "cannot connect to {host}:{port}: {source}; is `{program}` running there, and is the port open?"
            ),
            error => Advised(error).to_string(),
        }
    }
}

/// Returns the settings of the stream of a session. It carries a few small messages, so it has small pools and pins
/// none.
pub(crate) fn session_config(timeout: Duration) -> StreamConfig {
    StreamConfig {
        chunk_bytes: SESSION_CHUNK_BYTES,
        depth: SESSION_DEPTH,
        timeout,
        transport: TransportPolicy::Tcp,
        // The last message of a session says how it ended.
        on_drop: OnDrop::Fin,
        ..StreamConfig::default()
    }
}

/// A chunk of a session: most messages fit into one.
const SESSION_CHUNK_BYTES: usize = 16 << 10;

/// The chunks of a session in each direction.
const SESSION_DEPTH: usize = 4;
