//! The interface of an application of the agent: it takes an order, runs on connected edges, and reports.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::mpsc;

use super::{
    cause::FirstCause,
    connected_edge::{ConnectedEdge, Meter},
    control::Outbox,
};
use crate::{
    Error,
    carry::thread::CarryThread,
    ssh::protocol::{EdgeDirection, EdgeId, FaultKind, Payload},
};

/// The applications that the worker does not have itself: those of the layers above it.
pub(crate) trait Applications {
    /// Carries out the orders of [`Work::Copy`](crate::ssh::protocol::Work::Copy).
    type Copy: Job;
    /// Carries out the orders of [`Work::Measure`](crate::ssh::protocol::Work::Measure).
    type Measure: Job;
    /// Carries out the orders of [`Work::Forward`](crate::ssh::protocol::Work::Forward).
    type Forward: Job;
}

/// An application of the agent: carries out the orders of one [`Work`](crate::ssh::protocol::Work).
pub(crate) trait Job: Sized {
    /// Decodes and checks the application's part of an order. `edges` are the edges of the order; none is connected
    /// yet.
    ///
    /// # Errors
    ///
    /// A sentence for the user, if the order is invalid.
    fn prepare(context: &JobContext, order: &Payload, edges: &OrderedEdges)
    -> Result<Self, String>;

    /// Does the work. Returns when all of its processes have exited and every edge is closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave processes running. The guard kills them after the worker has exited.
    async fn run(&mut self, edges: ConnectedEdges, messages: Messages);

    /// Returns the application's report, after [`run`](Self::run) has returned or was dropped.
    fn report(&self) -> Option<Payload>;
}

/// What all tasks that work on one order share.
#[derive(Clone)]
pub(crate) struct JobContext {
    /// The name of the work in messages to peers: "stage 2 (fs2)".
    pub(crate) name: String,
    /// The first failure of the order.
    pub(crate) cause: Arc<FirstCause>,
    /// The queue of messages to the controller.
    pub(crate) outbox: Outbox,
}

impl JobContext {
    /// Fails the work because of a failure in this process.
    pub(crate) fn fail_local(&self, text: &str) {
        self.fail(FaultKind::Local, text);
    }

    /// Fails the work because the edge to `peer` broke. The peers on all edges receive the reason.
    pub(crate) fn broken(&self, error: Error, peer: &str) {
        self.cause.broken(error, peer, &self.name);
    }

    /// Fails the work. The peers on the edges receive `text` with the name of the work before it.
    pub(crate) fn fail(&self, kind: FaultKind, text: &str) {
        let reason = format!("{}: {text}", self.name);
        self.cause.fail(kind, text, reason);
    }
}

/// The application's messages from the controller, in order. The queue is unbounded: an application whose
/// controller can send many messages needs its own flow control.
pub(crate) type Messages = mpsc::UnboundedReceiver<Payload>;

/// An edge, and the thread whose runtime its stream belongs to.
pub(crate) type PlacedEdge = (CarryThread, ConnectedEdge);

/// The edges of an order that are connected.
#[derive(Default)]
pub(crate) struct ConnectedEdges(pub(crate) BTreeMap<EdgeId, PlacedEdge>);

impl ConnectedEdges {
    /// Removes an edge and returns it, if it is there.
    pub(crate) fn take(&mut self, id: EdgeId) -> Option<PlacedEdge> {
        self.0.remove(&id)
    }

    /// Returns the name of the other end of an edge in messages.
    pub(crate) fn peer(&self, id: EdgeId) -> String {
        let edge = self.0.get(&id);
        edge.map(|(_, edge)| edge.peer.clone()).unwrap_or_default()
    }

    /// Closes every edge that was not taken. If the work has failed, the peers receive the reason.
    pub(crate) async fn close(self) {
        let closing = self.0.into_values().map(|(thread, edge)| async move {
            thread.run(edge.close()).await;
        });
        futures::future::join_all(closing).await;
    }
}

/// The edges of an order by id: the direction of each, and its counts.
pub(crate) struct OrderedEdges(pub(crate) BTreeMap<EdgeId, (EdgeDirection, Arc<Meter>)>);

impl OrderedEdges {
    /// Returns the counts of an edge that the application uses in this direction.
    ///
    /// # Errors
    ///
    /// A sentence for the user, if there is no such edge or if its direction is another.
    pub(crate) fn meter(&self, id: EdgeId, direction: EdgeDirection) -> Result<Arc<Meter>, String> {
        match self.0.get(&id) {
            Some((actual, meter)) if *actual == direction => Ok(Arc::clone(meter)),
            Some(_) => Err(format!("the order's edge {id} leads the wrong way")),
            None => Err(format!("the order has no edge {id}")),
        }
    }
}
