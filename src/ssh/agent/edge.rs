//! Connects one edge of an order as the controller requests: listens, or dials the end that listens.

use std::future::pending;

use tokio::sync::mpsc;

use super::{
    acceptance::{EdgeAcceptance, EdgeAcceptor},
    control::Outbox,
};
use crate::{
    Error, Stream, reach,
    ssh::{
        edge::EdgePlan,
        protocol::{EdgeId, FromAgent},
    },
};

/// A request of the controller about an edge that is not connected yet.
#[derive(Debug)]
pub(super) enum EdgeRequest {
    /// Listen, and report the port.
    Listen,
    /// Connect to the other end, which listens.
    Dial {
        /// Where the other end may be reached.
        addresses: Vec<String>,
        /// The port of the other end.
        port: u16,
    },
}

/// Carries out the controller's requests until the edge is connected. The stream belongs to the current runtime.
///
/// The caller reports the connection, when it has the stream: what the controller sends after that report finds it.
///
/// # Errors
///
/// One sentence for the user. If no address can be reached, this reports that to the controller and waits for its
/// next request.
///
/// # Cancel safety
///
/// Dropping the future closes what it has opened.
pub(super) async fn establish(
    id: EdgeId,
    plan: EdgePlan,
    mut requests: mpsc::UnboundedReceiver<EdgeRequest>,
    outbox: Outbox,
    acceptance: EdgeAcceptance,
) -> Result<Stream, String> {
    let mut acceptor = None;
    loop {
        tokio::select! {
            Some(request) = requests.recv() => match request {
                EdgeRequest::Listen => {
                    let opened = acceptance.open(&plan).await?;
                    let port = opened.port();
                    outbox.send(FromAgent::Listening { edge: id, port });
                    acceptor = Some(opened);
                }
                EdgeRequest::Dial { addresses, port } => {
                    acceptance.check_dial()?;
                    match plan.dial(&addresses, port).await? {
                        Ok(stream) => return Ok(stream),
                        Err(tried) => outbox.send(FromAgent::Unreachable { edge: id, tried }),
                    }
                }
            },
            accepted = accept(acceptor.as_mut()) => match accepted {
                Ok(stream) => return Ok(stream),
                Err(error) if reach::is_final(&error) => return Err(plan.unconnected(error)),
                Err(error) => tracing::debug!(%error, "a connection ended before it was a stream"),
            },
        }
    }
}

async fn accept(acceptor: Option<&mut EdgeAcceptor>) -> Result<Stream, Error> {
    match acceptor {
        Some(acceptor) => acceptor.accept().await,
        None => pending().await,
    }
}
