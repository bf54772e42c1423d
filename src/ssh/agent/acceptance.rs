//! How an agent accepts its edges: each at a listener of its own, or all at the listener of a server.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::{
    Direction, Error, KeyAcceptor, Listener, Stream, StreamConfig, TransportPolicy,
    ssh::{
        edge::EdgePlan,
        protocol::{EdgeDirection, StreamOrder},
    },
};

/// How an agent accepts its edges.
#[derive(Clone)]
pub(crate) enum EdgeAcceptance {
    /// Each edge has a listener of its own, on a port that the order allows.
    OwnListeners,
    /// All edges of all orders come to one listener. The agent dials no address that a controller gives to it.
    SharedListener(Arc<SharedListener>),
}

/// The listener of a server, for the edges of all its clients.
pub(crate) struct SharedListener {
    /// The listener that all clients know.
    pub(crate) listener: Arc<Listener>,
    /// The settings of every edge in one direction. An order may choose a shorter timeout, and exclude a transport.
    pub(crate) one_way: StreamConfig,
    /// The settings of every edge in both directions.
    pub(crate) two_way: StreamConfig,
    /// Receives each edge when it is connected.
    pub(crate) connected: Box<dyn Fn(&Stream) + Send + Sync>,
}

impl EdgeAcceptance {
    /// Returns the settings for an edge of an order.
    pub(super) fn config(
        &self,
        order: &StreamOrder,
        direction: EdgeDirection,
        control_runtime: &Handle,
    ) -> StreamConfig {
        let ordered = StreamConfig {
            control_runtime: Some(control_runtime.clone()),
            ..order.config(direction)
        };
        match self {
            Self::OwnListeners => ordered,
            Self::SharedListener(shared) => {
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
    pub(super) async fn open(&self, plan: &EdgePlan) -> Result<EdgeAcceptor, String> {
        match self {
            Self::OwnListeners => Ok(EdgeAcceptor::Own(plan.listen().await?)),
            Self::SharedListener(shared) => {
                let (key, config) = (plan.key.clone(), plan.config.clone());
                let key_acceptor = shared.listener.accept_key(key, config, Handle::current());
                let key_acceptor = key_acceptor.ok_or("the key of an edge is in use already")?;
                Ok(EdgeAcceptor::Shared(key_acceptor, Arc::clone(shared)))
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
            Self::OwnListeners => Ok(()),
            Self::SharedListener(_) => Err("a server does not connect to its clients".to_owned()),
        }
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
pub(super) enum EdgeAcceptor {
    Own(Listener),
    Shared(KeyAcceptor, Arc<SharedListener>),
}

impl EdgeAcceptor {
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
            Self::Shared(key_acceptor, shared) => {
                let stream = key_acceptor.accept().await?;
                (shared.connected)(&stream);
                Ok(stream)
            }
        }
    }
}
