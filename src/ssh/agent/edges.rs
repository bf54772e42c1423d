//! Connects the edges of an order: any number, each on a thread of its own.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    Key, StreamConfig,
    carry::thread::CarryThread,
    ssh::{
        agent::{
            acceptance::EdgeAcceptance,
            connected_edge::{ConnectedEdge, EarlyEnd},
            edge::{self, EdgeRequest},
            job::{ConnectedEdges, JobContext, OrderedEdges, PlacedEdge},
            meter::Meter,
        },
        edge::{EdgePlan, describe_link},
        protocol::{EdgeDirection, EdgeId, EdgeOrder, FaultKind, FromAgent, Order},
    },
};

/// The edges of an order before they are connected.
pub(in crate::ssh::agent) struct PendingEdges {
    edges: BTreeMap<EdgeId, PendingEdge>,
    acceptance: EdgeAcceptance,
    routes: EdgeRoutes,
}

struct PendingEdge {
    thread: CarryThread,
    plan: EdgePlan,
    direction: EdgeDirection,
    requests: mpsc::UnboundedReceiver<EdgeRequest>,
    meter: Arc<Meter>,
}

/// Passes each request of the controller to the edge that it is about.
#[derive(Clone, Default)]
pub(in crate::ssh::agent) struct EdgeRoutes(BTreeMap<EdgeId, mpsc::UnboundedSender<EdgeRequest>>);

impl EdgeRoutes {
    /// Passes a request to its edge. A request about an edge that is connected or unknown is ignored.
    pub(super) fn send(&self, id: EdgeId, request: EdgeRequest) {
        if let Some(route) = self.0.get(&id) {
            let _ = route.send(request);
        }
    }
}

impl PendingEdges {
    /// Starts a thread and parses the key for each edge of `order`, which `acceptance` accepts. Removes the edges, with
    /// their keys, from the order.
    ///
    /// # Errors
    ///
    /// A sentence for the user, if the order names an edge twice, a key is invalid or a thread cannot be started.
    pub(in crate::ssh::agent) fn prepare(
        order: &mut Order,
        acceptance: &EdgeAcceptance,
        control_runtime: &Handle,
    ) -> Result<Self, String> {
        let mut edges = BTreeMap::new();
        let mut routes = EdgeRoutes::default();
        for edge in std::mem::take(&mut order.edges) {
            let (sender, requests) = mpsc::unbounded_channel();
            if edge.listens {
                let _ = sender.send(EdgeRequest::Listen);
            }
            let id = edge.id;
            if routes.0.insert(id, sender).is_some() {
                return Err(format!("the order names its edge {id} twice"));
            }
            let config = acceptance.config(&order.stream, edge.direction, control_runtime);
            let edge = PendingEdge::prepare(edge, config, order.stream.ports, requests)?;
            edges.insert(id, edge);
        }
        let acceptance = acceptance.clone();
        Ok(Self {
            edges,
            acceptance,
            routes,
        })
    }

    /// Returns the routes for the controller's requests to the edges.
    pub(super) fn routes(&self) -> EdgeRoutes {
        self.routes.clone()
    }

    /// Returns the directions and the counts of the edges.
    pub(super) fn ordered(&self) -> OrderedEdges {
        let edge =
            |(id, edge): (&EdgeId, &PendingEdge)| (*id, (edge.direction, Arc::clone(&edge.meter)));
        OrderedEdges(self.edges.iter().map(edge).collect())
    }

    /// Waits until all edges are connected. If the work fails before that, closes those that are connected with the reason,
    /// and returns none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future also drops the edges that are connected already.
    pub(super) async fn establish(self, context: &JobContext) -> Option<ConnectedEdges> {
        let acceptance = &self.acceptance;
        let establish = |(id, edge): (EdgeId, PendingEdge)| async move {
            tokio::select! {
                placed = edge.establish(id, acceptance, context) => Some((id, placed?)),
                () = context.cause.failed() => None,
            }
        };
        let count = self.edges.len();
        let all = self.edges.into_iter().map(establish);
        let connected = futures::future::join_all(all).await.into_iter().flatten();
        let edges = ConnectedEdges(connected.collect());
        if edges.0.len() == count {
            return Some(edges);
        }
        edges.close().await;
        None
    }
}

impl PendingEdge {
    fn prepare(
        mut edge: EdgeOrder,
        config: StreamConfig,
        ports: Option<(u16, u16)>,
        requests: mpsc::UnboundedReceiver<EdgeRequest>,
    ) -> Result<Self, String> {
        let key = Key::parse(&edge.key).map_err(|error| error.to_string())?;
        let name = match edge.direction {
            EdgeDirection::Receive => "input",
            EdgeDirection::Send => "output",
            EdgeDirection::Both => "edge",
        };
        let thread = CarryThread::start(name);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            thread,
            plan: EdgePlan {
                key,
                peer: std::mem::take(&mut edge.peer),
                config,
                ports,
            },
            direction: edge.direction,
            requests,
            meter: Arc::default(),
        })
    }

    /// Connects the edge, and reports that to the controller. If it fails, fails the work and returns none.
    async fn establish(
        self,
        id: EdgeId,
        acceptance: &EdgeAcceptance,
        context: &JobContext,
    ) -> Option<PlacedEdge> {
        let peer = self.plan.peer.clone();
        let outbox = context.outbox.clone();
        let establishing =
            edge::establish(id, self.plan, self.requests, outbox, acceptance.clone());
        match self.thread.run(establishing).await {
            Ok(stream) => {
                let link = describe_link(&stream);
                context.outbox.send(FromAgent::Connected { edge: id, link });
                let edge = ConnectedEdge {
                    stream,
                    meter: self.meter,
                    peer,
                    cause: Arc::clone(&context.cause),
                    stage: context.name.clone(),
                };
                Some((self.thread, edge))
            }
            Err(text) => {
                context.fail(FaultKind::Edge, &text);
                None
            }
        }
    }
}

/// Waits for the controller's `Go`. If an edge breaks or the work fails before that, closes all edges with the reason
/// and returns none.
pub(super) async fn wait_for(
    go: CancellationToken,
    context: &JobContext,
    edges: ConnectedEdges,
) -> Option<ConnectedEdges> {
    let broken = edges.0.values().map(|(_, edge)| until_broken(edge));
    let failed = async {
        futures::future::join_all(broken).await;
        context.cause.failed().await;
    };
    let has_started = tokio::select! {
        biased;
        () = go.cancelled() => true,
        () = failed => false,
    };
    if has_started {
        return Some(edges);
    }
    edges.close().await;
    None
}

/// Waits until the edge breaks, and fails the work with it. Returns as well when the work fails elsewhere or the peer
/// stops reading.
async fn until_broken(edge: &ConnectedEdge) {
    if let Err(EarlyEnd::Stream(error)) = edge.until(std::future::pending::<()>()).await {
        edge.broken(error);
    }
}
