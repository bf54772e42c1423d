//! A queue pair that a message has crossed, ready to carry a stream.

use std::{sync::Arc, time::Duration};

use crate::transport::{
    control::state::State,
    data::shared::Shared,
    rdma::{
        Rdma,
        link_setup::{ConnectedLink, LinkPlan, LiveLink},
        nudge::Nudge,
        receive_path::{self, RdmaReceive},
        renewal::{link_stalls::LinkStalls, renewer::Renewer, shared::RenewalShared},
        send_path::{self, RdmaSend},
    },
};

/// A proved link, from which the two sides of the data path are made.
pub(crate) struct Established {
    /// `None` in a stream that only receives.
    send: Option<send_path::SendLink>,
    /// `None` in a stream that only sends.
    receive: Option<receive_path::ReceiveLink>,
    nudge: Option<Nudge>,
    plan: LinkPlan,
    renewal: Option<Arc<RenewalShared>>,
    name: String,
    smaller_pool_reason: Option<String>,
}

impl Established {
    /// Wraps a proved link. `first_failure` is the reason why the pair of ports that was tried first does not work, if
    /// another one is used. `smaller_pool_reason` is the reason why the pool is smaller than requested, if it is.
    pub(super) fn new(
        plan: LinkPlan,
        connected: ConnectedLink,
        first_failure: Option<&String>,
        smaller_pool_reason: Option<String>,
    ) -> Self {
        let LiveLink {
            nudge,
            send,
            receive,
        } = connected.into_live();
        let mut name = plan.name.clone();
        if let Some(reason) = first_failure {
            name = format!("{name}; first tried: {reason}");
        }
        Self {
            send,
            receive,
            nudge: Some(nudge),
            plan,
            renewal: None,
            name,
            smaller_pool_reason,
        }
    }

    /// Returns the name of the link for the user: device, port, GID and MTU, and why no better pair of ports is used.
    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// Returns the reason why the pool is smaller than requested, if it is.
    pub(crate) fn smaller_pool_reason(&self) -> Option<String> {
        self.smaller_pool_reason.clone()
    }

    /// Returns the payload of a chunk, in bytes.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.plan.chunk_bytes
    }

    /// Returns the number of slots of the receive pool.
    pub(crate) fn depth(&self) -> u32 {
        self.plan.depth
    }

    /// Returns the number of slots of the peer's receive pool; 0 in a stream that only receives.
    pub(crate) fn peer_slots(&self) -> usize {
        self.send
            .as_ref()
            .map_or(0, send_path::SendLink::peer_slots)
    }

    /// Makes the two sides of the data path, for the stream whose state is `state`.
    pub(crate) fn paths(&mut self, state: &Arc<State>) -> (Option<RdmaSend>, Option<RdmaReceive>) {
        let renewal = self.renewal(state);
        state.data.set_path(LinkStalls::new(&renewal));
        renewal.nudges.set(self.nudge.take());
        let send = self.send.take();
        let send = send.map(|live| RdmaSend::new(live, Arc::clone(&renewal)));
        let receive = self.receive.take();
        (send, receive.map(|live| RdmaReceive::new(live, renewal)))
    }

    fn renewal(&mut self, state: &Arc<State>) -> Arc<RenewalShared> {
        let limit = self.plan.renew_after;
        let fresh = || Arc::new(RenewalShared::new(Arc::clone(state), limit));
        Arc::clone(self.renewal.get_or_insert_with(fresh))
    }

    /// Replaces the link when that is needed, for as long as the stream lasts. Fails the stream when a link
    /// is lost and no new one can be made for `patience`.
    pub(crate) async fn renew(mut self, shared: Arc<Shared<Rdma>>, patience: Duration) {
        let renewal = self.renewal(&shared.state);
        let renewer = Renewer::new(shared, renewal, self.plan, patience);
        renewer.serve().await;
    }
}
