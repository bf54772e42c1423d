//! An agent of rdforward: the far end of a tunnel.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    policy::ForwardPolicy,
    tunnel::{Tunnel, TunnelFault, TunnelRole},
};
use crate::{
    process::descriptors::raise_descriptor_limit,
    ssh::{
        agent::job::{ConnectedEdges, Job, JobContext, Messages, OrderedEdges},
        protocol::{EdgeDirection, EdgeId, FaultKind, Payload},
    },
};

/// The part of an order that is rdforward's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardOrder {
    /// The edge to the controller.
    pub(crate) edge: EdgeId,
}

/// An agent of rdforward. It does what a user who has logged in may do: it connects to every target, and listens where the
/// user asks for it.
pub(crate) struct ForwardJob {
    context: JobContext,
    edge: EdgeId,
}

impl Job for ForwardJob {
    fn prepare(
        context: &JobContext,
        order: &Payload,
        edges: &OrderedEdges,
    ) -> Result<Self, String> {
        let ForwardOrder { edge } = order
            .decode()
            .map_err(|error| format!("received an invalid order ({error})"))?;
        edges.meter(edge, EdgeDirection::Both)?;
        Ok(Self {
            context: context.clone(),
            edge,
        })
    }

    async fn run(&mut self, mut edges: ConnectedEdges, messages: Messages) {
        raise_descriptor_limit();
        // The controller sends no messages to a tunnel: its ends have their own.
        drop(messages);
        let peer = edges.peer(self.edge);
        let Some((thread, edge)) = edges.take(self.edge) else {
            self.context.fail_local("the edge of the tunnel is missing");
            return edges.close().await;
        };
        let cause = Arc::clone(&self.context.cause);
        let role = TunnelRole {
            policy: Some(ForwardPolicy::Any),
            may_listen: true,
            ..TunnelRole::default()
        };
        let work = async move {
            let mut stream = edge.stream;
            let tunnel = Tunnel::far(role, Arc::new(|_| ()));
            let ended = tokio::select! {
                ended = tunnel.run(&mut stream) => Some(ended),
                () = cause.failed() => None,
            };
            match &ended {
                None => stream.abort(&cause.reason()),
                Some(Err(fault)) => stream.abort(&fault.to_string()),
                Some(Ok(())) => {}
            }
            stream.close().await;
            ended
        };
        match thread.run(work).await {
            Some(Err(TunnelFault::Stream(error))) => self.context.broken(error, &peer),
            Some(Err(fault)) => self.context.fail(FaultKind::Edge, &fault.to_string()),
            Some(Ok(())) | None => {}
        }
        edges.close().await;
    }

    fn report(&self) -> Option<Payload> {
        None
    }
}
