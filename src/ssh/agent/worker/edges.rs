//! Both edges of a stage while they are brought up.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroize;

use super::Meters;
use crate::{
    Key,
    carry::thread::CarryThread,
    ssh::{
        agent::{
            edge::{self, Plan, Request},
            joint::{Joint, Trouble},
            meter::Meter,
            stage::{Ends, Placed, Stage},
        },
        protocol::{Edge, End, FaultKind, Order},
    },
};

/// What is to be brought up.
pub(super) struct Edges {
    input: Option<Prepared>,
    output: Option<Prepared>,
    routes: Routes,
}

struct Prepared {
    thread: CarryThread,
    plan: Plan,
    requests: mpsc::UnboundedReceiver<Request>,
    meter: Arc<Meter>,
}

/// Takes the controller's words to the edge that they are about.
#[derive(Clone, Default)]
pub(super) struct Routes {
    input: Option<mpsc::UnboundedSender<Request>>,
    output: Option<mpsc::UnboundedSender<Request>>,
}

impl Routes {
    pub(super) fn listen(&self, end: End) {
        self.send(end, Request::Listen);
    }

    pub(super) fn dial(&self, end: End, addresses: Vec<String>, port: u16) {
        self.send(end, Request::Dial { addresses, port });
    }

    /// An edge that stands, or that there is none of, takes no requests.
    fn send(&self, end: End, request: Request) {
        let route = match end {
            End::Input => &self.input,
            End::Output => &self.output,
        };
        if let Some(route) = route {
            let _ = route.send(request);
        }
    }
}

impl Edges {
    /// Makes what the edges in `order` need, and wipes their keys from it.
    ///
    /// # Errors
    ///
    /// A sentence for the user.
    pub(super) fn prepare(order: &mut Order, control_runtime: &Handle) -> Result<Self, String> {
        let (mut input, mut output) = (order.input.take(), order.output.take());
        let mut routes = Routes::default();
        let prepare = |end, edge: &mut Option<Edge>, route: &mut Option<_>| {
            let Some(edge) = edge else {
                return Ok(None);
            };
            let (sender, requests) = mpsc::unbounded_channel();
            if edge.listens {
                let _ = sender.send(Request::Listen);
            }
            *route = Some(sender);
            let config = edge::config(&order.stream, end, control_runtime.clone());
            let plan = plan(end, edge, config, order.stream.ports)?;
            let name = match end {
                End::Input => "input",
                End::Output => "output",
            };
            let thread = CarryThread::start(name);
            let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
            Ok::<_, String>(Some(Prepared {
                thread,
                plan,
                requests,
                meter: Arc::default(),
            }))
        };
        let input = prepare(End::Input, &mut input, &mut routes.input)?;
        let output = prepare(End::Output, &mut output, &mut routes.output)?;
        Ok(Self {
            input,
            output,
            routes,
        })
    }

    pub(super) fn routes(&self) -> Routes {
        self.routes.clone()
    }

    pub(super) fn meters(&self) -> Meters {
        let meter = |prepared: &Option<Prepared>| {
            let meter = prepared
                .as_ref()
                .map(|prepared| Arc::clone(&prepared.meter));
            meter.unwrap_or_default()
        };
        Meters {
            input: meter(&self.input),
            output: meter(&self.output),
        }
    }

    /// Waits until all edges stand. None when that failed, or something else did.
    pub(super) async fn establish(self, stage: &Stage) -> Option<Ends> {
        let input = establish(stage, self.input);
        let output = establish(stage, self.output);
        let ends = tokio::select! {
            ends = async { tokio::join!(input, output) } => ends,
            () = stage.cause.failed() => return None,
        };
        let (input, output) = ends;
        Some(Ends {
            input: input?,
            output: output?,
        })
    }
}

fn plan(
    end: End,
    edge: &mut Edge,
    config: crate::StreamConfig,
    ports: Option<(u16, u16)>,
) -> Result<Plan, String> {
    let key = Key::parse(&edge.key).map_err(|error| error.to_string());
    edge.key.zeroize();
    Ok(Plan {
        end,
        key: key?,
        peer: std::mem::take(&mut edge.peer),
        config,
        ports,
    })
}

/// One edge, where there is one; the outer option is none when it failed.
async fn establish(stage: &Stage, prepared: Option<Prepared>) -> Option<Option<Placed>> {
    let Some(prepared) = prepared else {
        return Some(None);
    };
    let Prepared {
        thread,
        plan,
        requests,
        meter,
    } = prepared;
    let peer = plan.peer.clone();
    let establishing = plan.establish(requests, stage.outbox.clone());
    match thread.run(establishing).await {
        Ok(stream) => {
            let joint = Joint {
                stream,
                meter,
                peer,
                cause: Arc::clone(&stage.cause),
                stage: stage.name.clone(),
            };
            Some(Some((thread, joint)))
        }
        Err(text) => {
            let reason = format!("{}: {text}", stage.name);
            stage.cause.fail(FaultKind::Edge, text, reason);
            None
        }
    }
}

/// Waits for the controller's `Go`. None when something breaks first; the peers are told.
pub(super) async fn wait_for(go: CancellationToken, stage: &Stage, ends: Ends) -> Option<Ends> {
    let waiting = futures::future::join(
        broken(stage, ends.input.as_ref()),
        broken(stage, ends.output.as_ref()),
    );
    let has_started = tokio::select! {
        biased;
        () = go.cancelled() => true,
        _ = waiting => false,
    };
    if has_started {
        return Some(ends);
    }
    let closing = [ends.input, ends.output].map(|end| async {
        if let Some((thread, joint)) = end {
            thread.run(joint.close()).await;
        }
    });
    futures::future::join_all(closing).await;
    None
}

/// Completes when the edge breaks, or something else has.
async fn broken(stage: &Stage, end: Option<&Placed>) {
    let Some((_, joint)) = end else {
        return stage.cause.failed().await;
    };
    if let Err(Trouble::Stream(error)) = joint.until(std::future::pending::<()>()).await {
        joint.broken(error);
    }
}
