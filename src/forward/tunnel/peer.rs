//! What the other end of a tunnel may ask for, and how it is answered.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    TunnelFault,
    connect::{connect, connect_own},
    handle::TunnelHandle,
    listener::{self, ForwardListener, ListenRoute},
    messages::{ForwardRefusal, OpenTarget, RefusalKind, TunnelMessage},
    shared::{AskingEnd, FlowLabel, TunnelEvent, TunnelShared},
};
use crate::{
    forward::{
        mux::frame::FlowId,
        policy::{ForwardPolicy, ForwardTarget},
        specs::ForwardSpec,
    },
    places::Places,
};

/// The most listeners that a peer may ask for.
const MOST_LISTENERS: usize = 256;

/// What one end of a tunnel does for the other one.
#[derive(Debug, Clone, Default)]
pub(crate) struct TunnelRole {
    /// What the other end may connect to from here; none is nothing.
    pub(crate) policy: Option<ForwardPolicy>,
    /// How many connections the other end may have; none is as many as there is memory for.
    pub(crate) places: Option<Places>,
    /// Whether the other end may listen here.
    pub(crate) may_listen: bool,
    /// Where the other end listens, and what this end connects the connections to.
    pub(crate) remote: Vec<ForwardSpec>,
}

/// Answers what the peer asks for.
pub(super) struct TunnelPeer {
    role: TunnelRole,
    listeners: usize,
}

impl TunnelPeer {
    pub(super) fn new(role: TunnelRole) -> Self {
        Self { role, listeners: 0 }
    }

    /// Handles a message about the tunnel.
    pub(super) fn message(
        &mut self,
        message: TunnelMessage,
        shared: &Arc<TunnelShared>,
    ) -> Result<(), TunnelFault> {
        match message {
            TunnelMessage::Hello { .. } => Err(TunnelFault::Message),
            TunnelMessage::Listen { id, at } => {
                self.listeners += 1;
                if self.listeners > MOST_LISTENERS {
                    return Err(TunnelFault::Message);
                }
                let may_listen = self.role.may_listen;
                let shared = Arc::clone(shared);
                let over = shared.over.clone();
                let work = async move {
                    let bound = if may_listen {
                        ForwardListener::bind(&at).await
                    } else {
                        Err(format!("cannot listen at {at}: this end does not allow it"))
                    };
                    match bound {
                        Ok(listener) => {
                            let port = listener.port();
                            shared.tell(&TunnelMessage::Listening { id, port });
                            let handle = TunnelHandle::new(shared);
                            listener::start(listener, ListenRoute::Remote(id), &handle);
                        }
                        Err(text) => shared.tell(&TunnelMessage::CannotListen { id, text }),
                    }
                };
                tokio::spawn(over.run_until_cancelled_owned(work));
                Ok(())
            }
            TunnelMessage::Listening { id, port } => {
                (shared.observer)(TunnelEvent::Listening { id, port });
                Ok(())
            }
            TunnelMessage::CannotListen { text, .. } => {
                let text = text.chars().filter(|c| !c.is_control()).collect();
                Err(TunnelFault::CannotListen(text))
            }
        }
    }

    /// Makes the connection that the peer asks for.
    pub(super) fn open(&self, id: FlowId, target: OpenTarget, shared: &Arc<TunnelShared>) {
        let Resolved { way, label } = match self.resolve(target) {
            Ok(resolved) => resolved,
            Err(label) => {
                let kind = RefusalKind::Forbidden;
                let text = "this target is not among those of --allow there".to_owned();
                return shared.refuse(id, label, &ForwardRefusal { kind, text });
            }
        };
        let place = match self.role.places.as_ref().map(Places::take) {
            Some(None) => return shared.refuse(id, label, &ForwardRefusal::full()),
            place => place.flatten(),
        };
        let over = shared.over.clone();
        let shared = Arc::clone(shared);
        let given_up = shared.connecting(id);
        let work = async move {
            let connecting = async {
                match way {
                    Way::To(target) => connect(&target).await,
                    Way::Own(address, port) => connect_own(address, port).await,
                }
            };
            let connected = tokio::select! {
                connected = connecting => connected,
                _ = given_up => return,
            };
            match connected {
                Ok(socket) => shared.attach(id, socket, label, AskingEnd::Peer(place)),
                Err(refusal) => shared.refuse(id, label, &refusal),
            }
        };
        tokio::spawn(over.run_until_cancelled_owned(work));
    }

    /// Returns what a connection is connected to. Returns only the names of its ends if that is not allowed.
    fn resolve(&self, target: OpenTarget) -> Result<Resolved, FlowLabel> {
        let policy = self.role.policy.as_ref();
        let (way, from, to, is_allowed) = match target {
            OpenTarget::Connect(target) => {
                let to = target.to_string();
                let is_allowed = policy.is_some_and(|policy| policy.allows(&target));
                (Some(Way::To(target)), PEER.to_owned(), to, is_allowed)
            }
            OpenTarget::OwnPort { address, port } => {
                let host = "localhost".to_owned();
                let own = ForwardTarget::Tcp { host, port };
                let is_allowed = policy.is_some_and(|policy| policy.allows(&own));
                let to = SocketAddr::new(address, port).to_string();
                (
                    Some(Way::Own(address, port)),
                    PEER.to_owned(),
                    to,
                    is_allowed,
                )
            }
            OpenTarget::Accepted { listener, from } => {
                let index = usize::try_from(listener).unwrap_or(usize::MAX);
                let target = self.role.remote.get(index).map(|spec| spec.target.clone());
                let to = target
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string);
                let from = from.chars().filter(|c| !c.is_control()).collect();
                (target.map(Way::To), from, to, true)
            }
        };
        let label = FlowLabel { from, to };
        match way {
            Some(way) if is_allowed => Ok(Resolved { way, label }),
            _ => Err(label),
        }
    }
}

/// The name of the other end where it has none.
const PEER: &str = "the other end";

/// A connection that may be made.
struct Resolved {
    way: Way,
    label: FlowLabel,
}

/// How a connection is made.
enum Way {
    To(ForwardTarget),
    Own(IpAddr, u16),
}
