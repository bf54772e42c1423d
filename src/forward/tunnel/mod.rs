//! One end of a tunnel: local sockets on one side, one stream on the other.
//!
//! Two futures do all the work of a tunnel, on the thread of its stream: one sends and one receives. Each runs only
//! when something is ready for it, so that a poll of the stream's other direction, which may spin over RDMA, costs
//! neither.

pub(crate) mod flows;
pub(crate) mod listener;
pub(crate) mod messages;
mod peer;
mod receiver;
mod sender;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

use std::{io, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};

use self::{
    flows::{EndGuard, TunnelCounts, TunnelHandle, TunnelObserver, TunnelShared},
    listener::ForwardListener,
    messages::TunnelMessage,
    peer::TunnelPeer,
    receiver::TunnelReceiver,
    sender::TunnelSender,
};
pub(crate) use self::{listener::ListenRoute, peer::TunnelRole};
use crate::{
    Error, Stream, carry,
    forward::mux::{MuxEnd, MuxFault},
};

/// One end of a tunnel, before it has its stream.
pub(crate) struct Tunnel {
    shared: Arc<TunnelShared>,
    role: TunnelRole,
    listeners: Vec<(ForwardListener, ListenRoute)>,
}

/// The reason why a tunnel has ended.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum TunnelFault {
    /// The stream broke.
    #[error(transparent)]
    Stream(Error),
    /// The peer broke the protocol.
    #[error(transparent)]
    Mux(#[from] MuxFault),
    /// The peer sent a message that is not understood.
    #[error("the tunnel received an invalid message")]
    Message,
    /// The peer ended the stream while connections were open.
    #[error("the tunnel ended while connections were open")]
    EndedEarly,
    /// The other end has a program of another version.
    #[error(
        "the other end has rdpipe {0}, this end has rdpipe {own}; install the same version on both hosts",
        own = env!("CARGO_PKG_VERSION")
    )]
    Version(String),
    /// The far end cannot listen where this end asked for it.
    #[error("the other host {0}")]
    CannotListen(String),
}

impl TunnelFault {
    /// Returns the fault for an error that a stream has returned.
    fn of_stream(error: &io::Error) -> Self {
        Self::Stream(carry::stream_error(error))
    }
}

impl Tunnel {
    /// Returns the end where the user has started the program.
    pub(crate) fn near(role: TunnelRole, observer: TunnelObserver) -> Self {
        Self::new(MuxEnd::Odd, role, observer)
    }

    /// Returns the other end.
    pub(crate) fn far(role: TunnelRole, observer: TunnelObserver) -> Self {
        Self::new(MuxEnd::Even, role, observer)
    }

    fn new(end: MuxEnd, role: TunnelRole, observer: TunnelObserver) -> Self {
        Self {
            shared: Arc::new(TunnelShared::new(end, observer)),
            role,
            listeners: Vec::new(),
        }
    }

    /// Adds a listener, whose connections are accepted when the tunnel runs.
    pub(crate) fn add_listener(&mut self, mut listener: ForwardListener, route: ListenRoute) {
        self.shared.own_path(&mut listener);
        self.listeners.push((listener, route));
    }

    /// Returns what makes connections through the tunnel.
    pub(crate) fn handle(&self) -> TunnelHandle {
        TunnelHandle::new(Arc::clone(&self.shared))
    }

    /// Returns a guard for the program to drop before it exits. The tunnel has ended then, even if it never ran.
    pub(crate) fn end_guard(&self) -> EndGuard {
        EndGuard(Arc::clone(&self.shared))
    }

    /// Returns the counts of the tunnel.
    pub(crate) fn counts(&self) -> Arc<TunnelCounts> {
        Arc::clone(&self.shared.counts)
    }

    /// Carries connections over `stream`, until the tunnel is [closed](TunnelHandle::close) at either end and its last
    /// connection has ended. All connections are reset if it fails.
    ///
    /// # Errors
    ///
    /// Fails if the stream breaks, if the peer breaks the protocol, or if the far end cannot listen as asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future resets all connections.
    pub(crate) async fn run(self, stream: &mut Stream) -> Result<(), TunnelFault> {
        let Self {
            shared,
            role,
            listeners,
        } = self;
        let _ending = EndGuard(Arc::clone(&shared));
        for (id, spec) in (0..).zip(&role.remote) {
            let at = spec.listen.clone();
            shared.tell(&TunnelMessage::Listen { id, at });
        }
        for (listener, route) in listeners {
            listener::start(listener, route, &TunnelHandle::new(Arc::clone(&shared)));
        }
        let (read, write) = stream.split();
        let sending = TunnelSender::new(write, Arc::clone(&shared)).run();
        let receiving = TunnelReceiver::new(read, shared, TunnelPeer::new(role)).run();
        let mut working: FuturesUnordered<BoxFuture<'_, Result<(), TunnelFault>>> =
            FuturesUnordered::new();
        working.push(Box::pin(sending));
        working.push(Box::pin(receiving));
        while let Some(ended) = working.next().await {
            ended?;
        }
        Ok(())
    }
}
