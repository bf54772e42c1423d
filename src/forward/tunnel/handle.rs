//! Makes connections through a tunnel, for tasks on any thread.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{
    messages::{ForwardRefusal, OpenTarget, RefusalKind},
    shared::{AskingEnd, FlowLabel, TunnelEvent, TunnelShared},
    socket::LocalSocket,
};
use crate::forward::mux::frame::FlowId;

/// Makes connections through a tunnel. Clones make connections through the same tunnel.
#[derive(Clone)]
pub(crate) struct TunnelHandle {
    pub(super) shared: Arc<TunnelShared>,
}

/// A connection that the far end has made. Without a local socket it is reset when dropped.
pub(crate) struct OpenedFlow {
    shared: Arc<TunnelShared>,
    id: FlowId,
    label: Option<FlowLabel>,
}

impl TunnelHandle {
    pub(super) fn new(shared: Arc<TunnelShared>) -> Self {
        Self { shared }
    }

    /// Asks the other end for a connection, and waits for its answer. `from` names the program that has connected.
    ///
    /// # Errors
    ///
    /// Returns why the connection cannot be made.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the connection up.
    pub(crate) async fn open(
        &self,
        target: &OpenTarget,
        label: FlowLabel,
    ) -> Result<OpenedFlow, ForwardRefusal> {
        let shared = Arc::clone(&self.shared);
        let result = match shared.ask(target) {
            None if shared.over.is_cancelled() => Err(over()),
            None => Err(ForwardRefusal::full()),
            Some((id, answer)) => {
                let flow = OpenedFlow {
                    shared,
                    id,
                    label: Some(label.clone()),
                };
                flow.answered(answer).await
            }
        };
        result.inspect_err(|refusal| {
            (self.shared.observer)(TunnelEvent::Refused(label, refusal.clone()));
        })
    }

    /// Removes the paths of the UNIX sockets at which this end listens.
    pub(crate) fn remove_paths(&self) {
        self.shared.lock().paths.clear();
    }

    /// Makes no more connections. The tunnel ends in order when the last one has ended.
    pub(crate) fn close(&self) {
        self.shared.close();
    }
}

impl OpenedFlow {
    async fn answered(
        mut self,
        answer: oneshot::Receiver<Result<(), ForwardRefusal>>,
    ) -> Result<Self, ForwardRefusal> {
        let over = self.shared.over.clone();
        let answer = tokio::select! {
            answer = answer => answer.unwrap_or_else(|_| Err(reset())),
            () = over.cancelled() => Err(self::over()),
        };
        match answer {
            Ok(()) => Ok(self),
            Err(refusal) => {
                // The connection has ended: nothing is left to give up.
                self.label = None;
                Err(refusal)
            }
        }
    }

    /// Joins the connection to a local socket.
    pub(crate) fn attach(mut self, socket: LocalSocket) {
        if let Some(label) = self.label.take() {
            self.shared.attach(self.id, socket, label, AskingEnd::Own);
        }
    }
}

impl Drop for OpenedFlow {
    fn drop(&mut self) {
        if self.label.is_some() {
            self.shared.give_up(self.id);
        }
    }
}

fn over() -> ForwardRefusal {
    ForwardRefusal {
        kind: RefusalKind::HostUnreachable,
        text: "the tunnel has ended".to_owned(),
    }
}

fn reset() -> ForwardRefusal {
    ForwardRefusal {
        kind: RefusalKind::Other,
        text: "the connection was reset".to_owned(),
    }
}
