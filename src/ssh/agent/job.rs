//! The interface of an application of the agent: it takes an order, runs on connected edges, and reports.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::mpsc;

use super::{cause::FirstCause, connected_edge::ConnectedEdge, control::Outbox, meter::Meter};
use crate::{
    carry::thread::CarryThread,
    ssh::protocol::{EdgeDirection, EdgeId, FaultKind, Payload},
};

/// An application of the agent: carries out the orders of one [`Work`](crate::ssh::protocol::Work).
pub(super) trait Job: Sized {
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
pub(super) struct JobContext {
    /// The name of the work in messages to peers: "stage 2 (fs2)".
    pub(super) name: String,
    /// The first failure of the order.
    pub(super) cause: Arc<FirstCause>,
    /// The queue of messages to the controller.
    pub(super) outbox: Outbox,
}

impl JobContext {
    /// Fails the work because of a failure in this process.
    pub(super) fn fail_local(&self, text: &str) {
        self.fail(FaultKind::Local, text);
    }

    /// Fails the work. The peers on the edges receive `text` with the name of the work before it.
    pub(super) fn fail(&self, kind: FaultKind, text: &str) {
        let reason = format!("{}: {text}", self.name);
        self.cause.fail(kind, text, reason);
    }
}

/// The application's messages from the controller, in order. The queue is unbounded: an application whose
/// controller can send many messages needs its own flow control.
pub(super) type Messages = mpsc::UnboundedReceiver<Payload>;

/// An edge, and the thread whose runtime its stream belongs to.
pub(super) type PlacedEdge = (CarryThread, ConnectedEdge);

/// The edges of an order that are connected.
#[derive(Default)]
pub(super) struct ConnectedEdges(pub(super) BTreeMap<EdgeId, PlacedEdge>);

impl ConnectedEdges {
    /// Removes an edge and returns it, if it is there.
    pub(super) fn take(&mut self, id: EdgeId) -> Option<PlacedEdge> {
        self.0.remove(&id)
    }

    /// Closes every edge that was not taken. If the work has failed, the peers receive the reason.
    pub(super) async fn close(self) {
        let closing = self.0.into_values().map(|(thread, edge)| async move {
            thread.run(edge.close()).await;
        });
        futures::future::join_all(closing).await;
    }
}

/// The edges of an order by id: the direction of each, and its counts.
pub(super) struct OrderedEdges(pub(super) BTreeMap<EdgeId, (EdgeDirection, Arc<Meter>)>);

impl OrderedEdges {
    /// Returns the counts of an edge that the application uses in this direction.
    ///
    /// # Errors
    ///
    /// A sentence for the user, if there is no such edge or if its direction is another.
    pub(super) fn meter(&self, id: EdgeId, direction: EdgeDirection) -> Result<Arc<Meter>, String> {
        match self.0.get(&id) {
            Some((actual, meter)) if *actual == direction => Ok(Arc::clone(meter)),
            Some(_) => Err(format!("the order's edge {id} leads the wrong way")),
            None => Err(format!("the order has no edge {id}")),
        }
    }
}
