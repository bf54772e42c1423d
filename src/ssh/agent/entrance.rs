//! How an agent accepts its edges: each at a listener of its own, or all at the listener of a server.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;

use crate::{
    Direction, Error, Listener, RdmaConfig, Reception, Stream, StreamConfig, TransportPolicy,
    ssh::{
        edge::EdgePlan,
        protocol::{EdgeDirection, StreamOrder},
    },
};

/// How an agent accepts its edges.
#[derive(Clone)]
pub(crate) enum EdgeEntrance {
    /// Each edge has a listener of its own, on a port that the order allows.
    Own,
    /// All edges of all orders come to one listener. The agent dials no address that a controller gives to it.
    Shared(Arc<SharedEntrance>),
}

/// The entrance of a server.
pub(crate) struct SharedEntrance {
    /// The listener that all clients know.
    pub(crate) listener: Arc<Listener>,
    /// The settings of every edge in one direction. An order may choose a shorter timeout, and exclude a transport.
    pub(crate) one_way: StreamConfig,
    /// The settings of every edge in both directions.
    pub(crate) two_way: StreamConfig,
    /// Receives each edge when it is connected.
    pub(crate) connected: Box<dyn Fn(&Stream) + Send + Sync>,
}

impl EdgeEntrance {
    /// Returns the settings for an edge of an order.
    pub(super) fn config(
        &self,
        order: &StreamOrder,
        direction: EdgeDirection,
        control_runtime: &Handle,
    ) -> StreamConfig {
        let ordered = StreamConfig {
            control_runtime: Some(control_runtime.clone()),
            ..ordered_config(order, direction)
        };
        match self {
            Self::Own => ordered,
            Self::Shared(shared) => {
                let own = match ordered.direction {
                    Direction::Both => &shared.two_way,
                    Direction::Send | Direction::Receive => &shared.one_way,
                };
                StreamConfig {
                    direction: ordered.direction,
                    control_runtime: ordered.control_runtime,
                    timeout: ordered.timeout.min(own.timeout),
                    transport: common(own.transport, ordered.transport),
                    ..own.clone()
                }
            }
        }
    }

    /// Starts to listen for an edge.
    ///
    /// # Errors
    ///
    /// One sentence for the user.
    pub(super) async fn open(&self, plan: &EdgePlan) -> Result<EdgeDoor, String> {
        match self {
            Self::Own => Ok(EdgeDoor::Own(plan.listen().await?)),
            Self::Shared(shared) => {
                let (key, config) = (plan.key.clone(), plan.config.clone());
                let reception = shared.listener.expect(key, config, Handle::current());
                let reception = reception.ok_or("the key of an edge is in use already")?;
                Ok(EdgeDoor::Shared(reception, Arc::clone(shared)))
            }
        }
    }

    /// Checks that the agent may connect to an address that the controller gives to it.
    ///
    /// # Errors
    ///
    /// One sentence for the user.
    pub(super) fn check_dial(&self) -> Result<(), String> {
        match self {
            Self::Own => Ok(()),
            Self::Shared(_) => Err("a server does not connect to its clients".to_owned()),
        }
    }
}

/// Returns the settings that an order gives for an edge, with the current runtime.
pub(crate) fn ordered_config(order: &StreamOrder, direction: EdgeDirection) -> StreamConfig {
    let default = StreamConfig::default();
    let chunk_bytes = order
        .chunk_bytes
        .and_then(|bytes| usize::try_from(bytes).ok());
    let depth = order.depth.and_then(|depth| usize::try_from(depth).ok());
    StreamConfig {
        chunk_bytes: chunk_bytes.unwrap_or(default.chunk_bytes),
        depth: depth.unwrap_or(default.depth),
        timeout: Duration::from_millis(order.timeout_ms),
        transport: order.transport.into(),
        rdma: RdmaConfig {
            chunk_bytes: chunk_bytes.unwrap_or(default.rdma.chunk_bytes),
            depth: depth.unwrap_or(default.rdma.depth),
            device: order.device.clone(),
            port: order.ib_port,
            gid_index: order.gid_index,
            traffic_class: order.traffic_class,
            service_level: order.service_level,
            pkey_index: order.pkey_index,
            busy_poll: order
                .busy_poll_us
                .map(|time| Duration::from_micros(time.into())),
            ..default.rdma
        },
        direction: direction.into(),
        ..default
    }
}

/// Returns the transports that both policies allow. If they exclude each other, the handshake of the edge says so.
fn common(server: TransportPolicy, ordered: TransportPolicy) -> TransportPolicy {
    match server {
        TransportPolicy::Auto => ordered,
        chosen => chosen,
    }
}

/// Where one edge is accepted.
pub(super) enum EdgeDoor {
    Own(Listener),
    Shared(Reception, Arc<SharedEntrance>),
}

impl EdgeDoor {
    /// Returns the port for the other end.
    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Own(listener) => listener.local_addr().port(),
            Self::Shared(_, shared) => shared.listener.local_addr().port(),
        }
    }

    /// Accepts the edge.
    ///
    /// # Cancel safety
    ///
    /// Safe: a stream that was not returned is returned by the next call.
    pub(super) async fn accept(&mut self) -> Result<Stream, Error> {
        match self {
            Self::Own(listener) => listener.accept_or_mismatch().await,
            Self::Shared(reception, shared) => {
                let stream = reception.accept().await?;
                (shared.connected)(&stream);
                Ok(stream)
            }
        }
    }
}
