//! Brings up one edge of a stage: listens, or finds a way to the end that does.

use std::{future::pending, io, time::Duration};

use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{control::Outbox, explain};
use crate::{
    Direction, Error, Key, Listener, RdmaConfig, Stream, StreamConfig, Transport, TransportPolicy,
    reach::{self, Unreached},
    ssh::protocol::{End, FromAgent, Link, StreamOrder},
};

/// How long the ports of `-p` may all be taken: edges of the same pipeline stand within it.
const PORT_LIMIT: Duration = Duration::from_secs(5);

/// How often they are tried meanwhile.
const PORT_INTERVAL: Duration = Duration::from_millis(20);

/// What the controller says about an edge that does not stand yet.
#[derive(Debug)]
pub(super) enum Request {
    /// Listen, and say where.
    Listen,
    /// The other end listens there.
    Dial { addresses: Vec<String>, port: u16 },
}

/// An edge that is to be.
pub(crate) struct Plan {
    pub(crate) end: End,
    pub(crate) key: Key,
    /// Who is at the other end.
    pub(crate) peer: String,
    pub(crate) config: StreamConfig,
    pub(crate) ports: Option<(u16, u16)>,
}

impl Plan {
    /// Does what the controller says until the edge stands, and tells it so. To be run where the
    /// stream will be used.
    ///
    /// # Errors
    ///
    /// One sentence for the user. That an address cannot be reached is none: the controller is told,
    /// and may have another idea.
    pub(super) async fn establish(
        self,
        mut requests: mpsc::UnboundedReceiver<Request>,
        outbox: Outbox,
    ) -> Result<Stream, String> {
        let mut listener = None;
        let stream = loop {
            tokio::select! {
                Some(request) = requests.recv() => match request {
                    Request::Listen => {
                        let opened = listen(&self).await?;
                        let port = opened.local_addr().port();
                        outbox.send(FromAgent::Listening { end: self.end, port });
                        listener = Some(opened);
                    }
                    Request::Dial { addresses, port } => {
                        match self.dial(&addresses, port).await? {
                            Ok(stream) => break stream,
                            Err(tried) => outbox.send(FromAgent::Unreachable { end: self.end, tried }),
                        }
                    }
                },
                accepted = accept(listener.as_mut()) => match accepted {
                    Ok(stream) => break stream,
                    Err(error) if reach::is_final(&error) => return Err(explain::unconnected(error, &self.peer)),
                    Err(error) => tracing::debug!(%error, "a peer that went away"),
                },
            }
        };
        let link = link(&stream);
        outbox.send(FromAgent::Connected {
            end: self.end,
            link,
        });
        Ok(stream)
    }

    /// Shakes hands with the addresses that answer, one after the other, until one is the peer. If none
    /// is: what happened at each.
    pub(crate) async fn dial(
        &self,
        addresses: &[String],
        port: u16,
    ) -> Result<Result<Stream, Vec<(String, String)>>, String> {
        match reach::dial(addresses, port, &self.key, &self.config).await {
            Ok(stream) => Ok(Ok(stream)),
            Err(Unreached::Final(error)) => Err(explain::unconnected(error, &self.peer)),
            Err(Unreached::Nowhere(tried)) => {
                let tried = tried.into_iter().map(|tried| (tried.address, tried.what));
                Ok(Err(tried.collect()))
            }
        }
    }
}

/// How the streams of a stage are set up.
pub(super) fn config(order: &StreamOrder, end: End, control_runtime: Handle) -> StreamConfig {
    let default = StreamConfig::default();
    let chunk_bytes = order
        .chunk_bytes
        .and_then(|bytes| usize::try_from(bytes).ok());
    let depth = order.depth.and_then(|depth| usize::try_from(depth).ok());
    StreamConfig {
        chunk_bytes: chunk_bytes.unwrap_or(default.chunk_bytes),
        depth: depth.unwrap_or(default.depth),
        timeout: Duration::from_millis(order.timeout_ms),
        transport: match order.transport {
            1 => TransportPolicy::Rdma,
            2 => TransportPolicy::Tcp,
            _ => TransportPolicy::Auto,
        },
        rdma: RdmaConfig {
            chunk_bytes: chunk_bytes.unwrap_or(default.rdma.chunk_bytes),
            depth: depth.unwrap_or(default.rdma.depth),
            device: order.device.clone(),
            port: order.ib_port,
            gid_index: order.gid_index,
            traffic_class: order.traffic_class,
            service_level: order.service_level,
            pkey_index: order.pkey_index,
            ..default.rdma
        },
        direction: match end {
            End::Input => Direction::Receive,
            End::Output => Direction::Send,
        },
        control_runtime: Some(control_runtime),
        ..default
    }
}

/// Listens on a port that is free, or becomes so: an edge that stands needs its port no more, and a
/// pipeline whose hosts have one open port each takes them in turns.
async fn listen(plan: &Plan) -> Result<Listener, String> {
    let given_up = Instant::now() + PORT_LIMIT;
    loop {
        match reach::listen(None, plan.ports, &plan.key, &plan.config) {
            Err(Error::Listen { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < given_up =>
            {
                sleep(PORT_INTERVAL).await;
            }
            opened => return opened.map_err(|error| cannot_listen(plan, &error)),
        }
    }
}

fn cannot_listen(plan: &Plan, error: &Error) -> String {
    let Error::Listen { source, .. } = error else {
        return crate::advice::Advised(error.clone()).to_string();
    };
    match plan.ports {
        None => format!("cannot listen: {source}"),
        Some((first, last)) if first == last => {
            format!("cannot listen on port {first}: {source}; see -p")
        }
        Some((first, last)) => {
            format!("cannot listen on any of the ports {first}-{last}: {source}; see -p")
        }
    }
}

async fn accept(listener: Option<&mut Listener>) -> Result<Stream, Error> {
    match listener {
        Some(listener) => listener.accept().await,
        None => pending().await,
    }
}

/// What carries the stream, for the controller.
pub(crate) fn link(stream: &Stream) -> Link {
    Link {
        transport: match stream.transport() {
            Transport::Rdma => "rdma",
            Transport::Tcp => "tcp",
        }
        .to_owned(),
        reason: stream.transport_reason().to_owned(),
        is_fallback: stream.is_fallback(),
        address: stream.peer_addr().ip().to_string(),
    }
}
