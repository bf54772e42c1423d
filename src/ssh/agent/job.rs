//! What every application of an agent has in common: it takes an order, runs on connected edges, and reports.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::mpsc;

use super::{cause::FirstCause, connected_edge::ConnectedEdge, control::Outbox, meter::Meter};
use crate::{
    carry::thread::CarryThread,
    ssh::protocol::{EdgeDirection, EdgeId, FaultKind, Payload},
};

/// An application of the agent: carries out the orders of one [`Work`](crate::ssh::protocol::Work).
pub(super) trait Job: Sized {
    /// Takes the application's part of an order. `edges` are those of the order, none of them connected.
    ///
    /// # Errors
    ///
    /// A sentence for the user when the order makes no sense.
    fn prepare(context: &JobContext, order: &Payload, edges: &OrderedEdges)
    -> Result<Self, String>;

    /// Does the work. Returns when nothing of it runs any more and every edge is closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the work as it is: the guard kills what still runs.
    async fn run(&mut self, edges: ConnectedEdges, messages: Messages);

    /// Returns the application's report, at the end of [`run`](Self::run) or where it was dropped.
    fn report(&self) -> Option<Payload>;
}

/// What all tasks that work on one order share.
#[derive(Clone)]
pub(super) struct JobContext {
    /// How peers know the work: "stage 2 (fs2)".
    pub(super) name: String,
    /// The first thing that goes wrong.
    pub(super) cause: Arc<FirstCause>,
    /// Where messages for the controller go.
    pub(super) outbox: Outbox,
}

impl JobContext {
    /// Fails the work because of something of its own.
    pub(super) fn fail_local(&self, text: &str) {
        self.fail(FaultKind::Local, text);
    }

    /// Fails the work; the peers are told the same.
    pub(super) fn fail(&self, kind: FaultKind, text: &str) {
        let reason = format!("{}: {text}", self.name);
        self.cause.fail(kind, text, reason);
    }
}

/// The application's messages from the controller, in order. The queue has no limit of its own: an
/// application whose peer could send without end has to agree on one with it.
pub(super) type Messages = mpsc::UnboundedReceiver<Payload>;

/// An edge, and the thread that it lives on.
pub(super) type PlacedEdge = (CarryThread, ConnectedEdge);

/// The edges of an order that are connected.
#[derive(Default)]
pub(super) struct ConnectedEdges(pub(super) BTreeMap<EdgeId, PlacedEdge>);

impl ConnectedEdges {
    /// Takes one edge out.
    pub(super) fn take(&mut self, id: EdgeId) -> Option<PlacedEdge> {
        self.0.remove(&id)
    }

    /// Closes every edge that was not taken; the peers are told if the work has failed.
    pub(super) async fn close(self) {
        let closing = self.0.into_values().map(|(thread, edge)| async move {
            thread.run(edge.close()).await;
        });
        futures::future::join_all(closing).await;
    }
}

/// The edges of an order by id: which way each leads, and the counts of what it carries.
pub(super) struct OrderedEdges(pub(super) BTreeMap<EdgeId, (EdgeDirection, Arc<Meter>)>);

impl OrderedEdges {
    /// Returns the counts of the edge, if it leads the way that the application wants it to.
    ///
    /// # Errors
    ///
    /// A sentence for the user when there is no such edge, or when it leads another way.
    pub(super) fn meter(&self, id: EdgeId, direction: EdgeDirection) -> Result<Arc<Meter>, String> {
        match self.0.get(&id) {
            Some((actual, meter)) if *actual == direction => Ok(Arc::clone(meter)),
            Some(_) => Err(format!("the order's edge {id} leads the wrong way")),
            None => Err(format!("the order has no edge {id}")),
        }
    }
}
