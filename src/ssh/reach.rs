//! Finding the other end of an edge among its addresses.

use crate::{Error, HandshakeFault, Key, Stream, StreamConfig, Transport, connect};

use super::protocol::Link;

/// Shakes hands with one address after the other, until one is the peer. If none is: what happened at each.
pub(crate) async fn dial(
    addresses: &[String],
    port: u16,
    key: &Key,
    config: &StreamConfig,
) -> Result<Result<Stream, Vec<(String, String)>>, Error> {
    let mut tried = Vec::new();
    for address in addresses {
        match connect(address, port, key, config).await {
            Ok(stream) => return Ok(Ok(stream)),
            Err(Error::Handshake { fault, .. }) if !is_final(&fault) => {
                tried.push((address.clone(), fault.to_string()));
            }
            Err(Error::Connect { source, .. } | Error::Resolve { source, .. }) => {
                tried.push((address.clone(), source.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Err(tried))
}

fn is_final(fault: &HandshakeFault) -> bool {
    matches!(
        fault,
        HandshakeFault::Version { .. }
            | HandshakeFault::Direction(_)
            | HandshakeFault::Transport(_)
            | HandshakeFault::Refused(_)
    )
}

/// What carries the stream, for the controller.
pub(crate) fn link(stream: &Stream) -> Link {
    Link {
        transport: match stream.transport() {
            Transport::Rdma => "rdma",
            Transport::Tcp => "tcp",
        }
        .to_owned(),
        reason: stream.transport_reason().to_owned(),
        is_fallback: stream.is_fallback(),
        address: stream.peer_addr().ip().to_string(),
    }
}

/// The same error, about `name` instead of an address.
pub(crate) fn named(mut error: Error, name: &str) -> Error {
    match &mut error {
        Error::Handshake { peer, .. }
        | Error::Send { peer, .. }
        | Error::Receive { peer, .. }
        | Error::Unconfirmed { peer, .. }
        | Error::PeerAborted { peer, .. }
        | Error::Stopped { peer, .. } => name.clone_into(peer),
        _ => {}
    }
    error
}
