//! Brings up one edge of a stage: listens, or finds a way to the end that does.

use std::{
    future::pending,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{net::TcpStream, runtime::Handle, sync::mpsc, time::timeout};

use super::{control::Outbox, explain};
use crate::{
    Direction, Error, HandshakeFault, Key, Listener, RdmaConfig, Stream, StreamConfig, Transport,
    TransportPolicy, connect,
    ssh::protocol::{End, FromAgent, Link, StreamOrder},
};

/// How long an address may take to answer. A SYN that was lost is sent again after one second.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// How long an address that answered waits for a better one: a LAN answers within it.
const BETTER_LIMIT: Duration = Duration::from_millis(20);

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
                        let opened = listen(&self)?;
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
                    Err(error) if is_final(&error) => return Err(explain::unconnected(error, &self.peer)),
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
        let mut probes = Probes::start(addresses, port);
        let mut tried = Vec::new();
        while let Some((address, answer)) = probes.next().await {
            let fault = match answer {
                Err(error) => error.to_string(),
                Ok(()) => match connect(&address, port, &self.key, &self.config).await {
                    Ok(stream) => return Ok(Ok(stream)),
                    Err(error) if is_final(&error) => {
                        return Err(explain::unconnected(error, &self.peer));
                    }
                    Err(Error::Handshake { fault, .. }) => fault.to_string(),
                    Err(Error::Connect { source, .. } | Error::Resolve { source, .. }) => {
                        source.to_string()
                    }
                    Err(error) => error.to_string(),
                },
            };
            tried.push((address, fault));
        }
        Ok(Err(tried))
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

/// Listens on every address, of both families where both are, on the first port that is free.
fn listen(plan: &Plan) -> Result<Listener, String> {
    let on = |address: IpAddr, port| {
        let address = SocketAddr::from((address, port));
        Listener::bind(address, plan.key.clone(), plan.config.clone())
    };
    let mut last = None;
    let (first, end) = plan.ports.unwrap_or((0, 0));
    for port in first..=end {
        let both = on(Ipv6Addr::UNSPECIFIED.into(), port).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => on(Ipv4Addr::UNSPECIFIED.into(), port),
        });
        match both {
            Ok(listener) => return Ok(listener),
            Err(Error::Listen { source, .. }) => last = Some(source),
            Err(error) => return Err(error.to_string()),
        }
    }
    let reason = last.map(|error| format!(": {error}")).unwrap_or_default();
    Err(match plan.ports {
        None => format!("cannot listen{reason}"),
        Some((first, last)) if first == last => format!("cannot listen on port {first}{reason}"),
        Some((first, last)) => {
            format!("cannot listen on any of the ports {first}-{last}{reason}; see -p")
        }
    })
}

async fn accept(listener: Option<&mut Listener>) -> Result<Stream, Error> {
    match listener {
        Some(listener) => listener.accept().await,
        None => pending().await,
    }
}

/// Whether another try, or another address, would end the same: the peer is the right one.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Handshake { fault, .. } => matches!(
            fault,
            HandshakeFault::Version { .. }
                | HandshakeFault::Direction(_)
                | HandshakeFault::Transport(_)
                | HandshakeFault::Refused(_)
        ),
        Error::Connect { .. } | Error::Resolve { .. } => false,
        _ => true,
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

type Answer = (usize, io::Result<()>);

/// TCP connections to several addresses at once, to see which of them answer.
struct Probes<'a> {
    addresses: &'a [String],
    running: FuturesUnordered<futures::future::BoxFuture<'a, Answer>>,
    /// Those that answered, and have not been returned.
    answered: Vec<usize>,
}

impl<'a> Probes<'a> {
    fn start(addresses: &'a [String], port: u16) -> Self {
        let probe = |(rank, address): (usize, &'a String)| {
            async move {
                let connecting = TcpStream::connect((address.as_str(), port));
                let answer = timeout(PROBE_LIMIT, connecting).await;
                let answer = answer.unwrap_or_else(|_| Err(no_answer()));
                (rank, answer.map(drop))
            }
            .boxed()
        };
        Self {
            addresses,
            running: addresses.iter().enumerate().map(probe).collect(),
            answered: Vec::new(),
        }
    }

    /// The next address, with what it said: of those that have answered, the first in the list; what
    /// failed, at once.
    async fn next(&mut self) -> Option<(String, io::Result<()>)> {
        loop {
            let best = self.answered.iter().copied().min();
            let answer = match best {
                // The first of all has nothing better to wait for.
                Some(0) => None,
                Some(_) => timeout(BETTER_LIMIT, self.running.next())
                    .await
                    .unwrap_or(None),
                None => Some(self.running.next().await?),
            };
            match (answer, best) {
                (Some((rank, Ok(()))), _) => self.answered.push(rank),
                (Some((rank, Err(error))), _) => {
                    return Some((self.addresses[rank].clone(), Err(error)));
                }
                (None, Some(best)) => {
                    self.answered.retain(|rank| *rank != best);
                    return Some((self.addresses[best].clone(), Ok(())));
                }
                (None, None) => return None,
            }
        }
    }
}

fn no_answer() -> io::Error {
    let text = format!("no answer within {PROBE_LIMIT:.0?}");
    io::Error::new(io::ErrorKind::TimedOut, text)
}
