//! A tunnel as the supervisor runs it: the far end as an agent, and the near end as one of the edges of the controller.

use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use serde::{Deserialize, Serialize};

use super::{
    policy::ForwardPolicy,
    tunnel::{
        AwaitingPlace, FurtherStreams, MOST_STREAMS, Tunnel, TunnelFault, TunnelRole,
        flows::TunnelHandle, suitable_streams,
    },
};
use crate::{
    Direction, Stream, host,
    process::raise_descriptor_limit,
    ssh::{
        agent::job::{ConnectedEdges, Job, JobContext, Messages, OrderedEdges},
        edge::EdgePlan,
        local_edge::{EdgeError, LocalWork},
        plan::StageHost,
        protocol::{EdgeId, EdgeOrder, FaultKind, Payload, PayloadError, Work, WorkFault},
        supervisor::{
            Action, RunOutcome, SupervisedWork,
            edge_setup::{EdgeSetup, Node},
        },
    },
};

/// The part of an order that is rdforward's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardOrder {
    pub(crate) edge: EdgeId,
}

/// An agent of rdforward. It does what a user who has logged in may do: it connects to every target, and listens where
/// the user asks for it.
pub(crate) struct ForwardJob {
    context: JobContext,
    edge: EdgeId,
    /// How the edge was set up, for further streams.
    plan: EdgePlan,
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
        edges.meter(edge, Direction::Both)?;
        Ok(Self {
            context: context.clone(),
            edge,
            plan: edges.plan(edge)?,
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
        let cause = Arc::clone(&self.context.first_fault);
        let role = TunnelRole {
            policy: Some(ForwardPolicy::Any),
            may_listen: true,
            further: Some(further_streams(self.plan.clone())),
            ..TunnelRole::default()
        };
        let work = async move {
            let mut stream = edge.stream;
            let tunnel = Tunnel::far(role, Arc::new(|_| ()));
            let handle = tunnel.handle();
            let failed = async {
                cause.failed().await;
                handle.give_reason(&cause.reason());
            };
            let ended = tokio::select! {
                ended = tunnel.run(&mut stream) => Some(ended),
                () = failed => None,
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

/// Returns how the agent gets further streams, whose first one was connected by this plan: as many as the user asks for.
fn further_streams(plan: EdgePlan) -> FurtherStreams {
    FurtherStreams {
        streams: suitable_streams(host::streams()),
        most: MOST_STREAMS,
        is_chosen: false,
        key: plan.key.clone(),
        config: plan.config.clone(),
        place: Some(AwaitingPlace::own(plan)),
    }
}

impl AwaitingPlace {
    /// Returns the place of an end that has a listener as its first stream was to have, on one of the ports of `plan`.
    pub(crate) fn own(plan: EdgePlan) -> Self {
        Self::Own(Arc::new(move |key| {
            let plan = EdgePlan {
                key,
                ..plan.clone()
            };
            async move { plan.listen().await }.boxed()
        }))
    }
}

/// The index of the only edge.
pub(crate) const TUNNEL_EDGE: usize = 0;

/// A tunnel to one host.
pub(crate) struct ForwardWork {
    place: StageHost,
}

impl ForwardWork {
    /// Returns a tunnel before its first message.
    pub(crate) fn new(place: StageHost) -> Self {
        Self { place }
    }
}

impl SupervisedWork for ForwardWork {
    type Outcome = RunOutcome;

    const NOUN: &'static str = "tunnel";

    fn places(&self) -> Vec<&StageHost> {
        vec![&self.place]
    }

    fn edges(&self) -> Vec<Option<EdgeSetup>> {
        vec![Some(EdgeSetup::two_way(Node::Agent(0), Node::Controller))]
    }

    fn site(&self, _: usize) -> String {
        self.place.to_string()
    }

    fn program(&self) -> &'static str {
        "rdforward"
    }

    fn order(&self, _: usize, _: &[EdgeOrder]) -> Result<Work, PayloadError> {
        let order = ForwardOrder {
            edge: EdgeId::of_index(TUNNEL_EDGE),
        };
        Payload::encode(&order).map(Work::Forward)
    }

    fn handle(&mut self, _: usize, message: &Payload) -> Result<Vec<Action>, PayloadError> {
        // An agent of a tunnel sends no messages of its own.
        message.decode::<()>()?;
        Ok(Vec::new())
    }

    fn is_infrastructure(&self, _: usize, _: &WorkFault, _: bool) -> bool {
        true
    }

    fn outcome(&self, run: RunOutcome) -> RunOutcome {
        run
    }
}

pub(crate) struct NearEnd {
    /// The tunnel and what is called when connections can be made, until then.
    begin: Option<(Tunnel, OnConnected)>,
    fault: NearFault,
}

/// Called when connections can be made. The value that it returns is dropped when the tunnel ends.
pub(crate) type OnConnected = Box<dyn FnOnce(&Stream) -> Box<dyn Send> + Send>;

/// The fault of the near end of a tunnel: `EdgeError` carries only its text.
#[derive(Debug, Clone, Default)]
pub(crate) struct NearFault(Arc<Mutex<Option<TunnelFault>>>);

impl NearFault {
    /// Returns the fault, if there was one.
    pub(crate) fn take(&self) -> Option<TunnelFault> {
        let mut fault = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fault.take()
    }

    fn set(&self, fault: TunnelFault) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }
}

impl NearEnd {
    /// Returns what makes connections through the tunnel, before it is carried.
    pub(crate) fn handle(&self) -> Option<TunnelHandle> {
        let (tunnel, _) = self.begin.as_ref()?;
        Some(tunnel.handle())
    }

    /// Returns the near end of `tunnel`, and what will break there.
    pub(crate) fn new(tunnel: Tunnel, on_connected: OnConnected) -> (Self, NearFault) {
        let fault = NearFault::default();
        let end = Self {
            begin: Some((tunnel, on_connected)),
            fault: fault.clone(),
        };
        (end, fault)
    }
}

impl LocalWork for NearEnd {
    fn relayed(&mut self) {
        // A further stream would need a way through ssh of its own.
        if let Some((tunnel, _)) = &mut self.begin {
            tunnel.have_one_stream();
        }
    }

    async fn carry(&mut self, stream: &mut Stream) -> Result<(), EdgeError> {
        let Some((tunnel, on_connected)) = self.begin.take() else {
            return Ok(());
        };
        let _while_connected = on_connected(stream);
        match tunnel.run(stream).await {
            Ok(()) => Ok(()),
            Err(TunnelFault::Stream(error)) => Err(EdgeError::Stream(error)),
            Err(fault) => {
                self.fault.set(fault.clone());
                Err(EdgeError::Local(fault.to_string()))
            }
        }
    }
}
