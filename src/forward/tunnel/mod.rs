//! One end of a tunnel: local sockets on one side, one or more streams on the other.
//!
//! Two futures do all the work of a stream, on its thread: one sends and one receives. Each runs only when something is
//! ready for it, so that a poll of the stream's other direction, which may spin over RDMA, costs neither.

pub(crate) mod end;
pub(crate) mod flows;
pub(crate) mod listener;
pub(crate) mod messages;
mod peer;
mod receiver;
mod sender;
pub(crate) mod socket;
#[cfg(test)]
mod tests;
mod widening;

use std::{io, sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{sync::mpsc, time::timeout};

use self::{
    end::{EndGuard, TunnelEnd},
    flows::{StreamKind, TunnelCounts, TunnelHandle, TunnelObserver, TunnelShared},
    listener::ForwardListener,
    messages::TunnelMessage,
    peer::TunnelPeer,
    receiver::TunnelReceiver,
    sender::TunnelSender,
    widening::Widener,
};
pub(crate) use self::{
    listener::ListenRoute,
    peer::TunnelRole,
    widening::{
        AwaitingPlace, FurtherStreams, MOST_STREAMS, MOST_SUITABLE_STREAMS, suitable_streams,
    },
};
use crate::{
    Error, Stream, carry,
    forward::mux::{MuxEnd, MuxFault},
};

/// One end of a tunnel, before it has its first stream.
pub(crate) struct Tunnel {
    first: Arc<TunnelShared>,
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

    fn new(numbers: MuxEnd, role: TunnelRole, observer: TunnelObserver) -> Self {
        let end = Arc::new(TunnelEnd::new(numbers, observer));
        let first = Arc::new(TunnelShared::new(&end, StreamKind::First));
        end.join(&first);
        Self {
            first,
            role,
            listeners: Vec::new(),
        }
    }

    /// Adds a listener, whose connections are accepted when the tunnel runs.
    pub(crate) fn add_listener(&mut self, mut listener: ForwardListener, route: ListenRoute) {
        self.first.end.own_path(&mut listener);
        self.listeners.push((listener, route));
    }

    pub(crate) fn set_further(&mut self, further: FurtherStreams) {
        self.role.further = Some(further);
    }

    /// Lets the tunnel have no further streams.
    pub(crate) fn have_one_stream(&mut self) {
        self.role.further = None;
    }

    /// Returns what makes connections through the tunnel.
    pub(crate) fn handle(&self) -> TunnelHandle {
        TunnelHandle::new(&self.first.end)
    }

    /// Returns a guard for the program to drop before it exits. The tunnel has ended then, even if it never ran.
    pub(crate) fn end_guard(&self) -> EndGuard {
        EndGuard(Arc::clone(&self.first.end))
    }

    pub(crate) fn counts(&self) -> Arc<TunnelCounts> {
        Arc::clone(&self.first.end.counts)
    }

    /// Carries connections over `stream`, and over those that join it, until the tunnel is
    /// [closed](TunnelHandle::close) at either end and its last connection has ended. All connections are reset if it
    /// fails.
    /// Fails if a stream breaks, if the peer breaks the protocol, or if the far end cannot listen as asked.
    /// Dropping the future resets all connections.
    pub(crate) async fn run(self, stream: &mut Stream) -> Result<(), TunnelFault> {
        let Self {
            first,
            role,
            listeners,
        } = self;
        let end = Arc::clone(&first.end);
        let ending = EndGuard(Arc::clone(&end));
        for (id, spec) in (0..).zip(&role.remote) {
            let at = spec.listen.clone();
            first.tell(&TunnelMessage::Listen { id, at });
        }
        let (faults, mut of_further) = mpsc::unbounded_channel();
        let widener = Widener::new(&end, &role, stream.peer_addr(), faults);
        if let Some(asking) = widener.asking() {
            first.tell(&asking);
        }
        for (listener, route) in listeners {
            listener::start(listener, route, &TunnelHandle::new(&end));
        }
        let carrying = carry(first, TunnelPeer::of_first(role, widener), stream);
        let mut ended = tokio::select! {
            ended = carrying => ended,
            Some(fault) = of_further.recv() => Err(fault),
        };
        if let Err(fault) = &ended {
            end.give_reason(&fault.to_string());
        }
        drop(ending);
        let further = async {
            while let Some(fault) = of_further.recv().await {
                if ended.is_ok() {
                    ended = Err(fault);
                }
            }
        };
        let _ = timeout(FURTHER_END_LIMIT, further).await;
        ended
    }
}

/// How long further streams may take to tell their peers how the tunnel has ended.
const FURTHER_END_LIMIT: Duration = Duration::from_secs(1);

/// Carries the connections of one stream until it has ended in order.
async fn carry(
    shared: Arc<TunnelShared>,
    peer: TunnelPeer,
    stream: &mut Stream,
) -> Result<(), TunnelFault> {
    let (read, write) = stream.split();
    let sending = TunnelSender::new(write, Arc::clone(&shared)).run();
    let receiving = TunnelReceiver::new(read, shared, peer).run();
    let mut working: FuturesUnordered<BoxFuture<'_, Result<(), TunnelFault>>> =
        FuturesUnordered::new();
    working.push(Box::pin(sending));
    working.push(Box::pin(receiving));
    while let Some(ended) = working.next().await {
        ended?;
    }
    Ok(())
}
