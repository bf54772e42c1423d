//! One end of an edge before it has a stream: listens, dials, and describes the link. Agents and the controller
//! both use this module.

use std::{io, time::Duration};

use tokio::time::{Instant, sleep};

use super::protocol::EdgeLink;
use crate::{
    Error, Key, Listener, Rails, Stream, StreamConfig, TransportPolicy,
    advice::Advised,
    reach::{self, Unreached},
};

/// How long an end waits for a free port while all ports of `-p` are taken. Other edges of the same run connect
/// within this time, and each then frees its port for the next.
const PORT_LIMIT: Duration = Duration::from_secs(5);

/// The pause between two attempts to listen while all ports of `-p` are taken.
const PORT_INTERVAL: Duration = Duration::from_millis(20);

/// What one end of an edge needs in order to connect.
#[derive(Clone)]
pub(crate) struct EdgePlan {
    /// The key that only the two ends have.
    pub(crate) key: Key,
    /// The name of the other end in messages.
    pub(crate) peer: String,
    /// How the stream is set up.
    pub(crate) config: StreamConfig,
    /// The first and the last port to listen on; none is any port.
    pub(crate) ports: Option<(u16, u16)>,
}

impl EdgePlan {
    /// Connects to the peer: makes a handshake with each address that answers, one after the other, until one is
    /// the peer. If none is, returns each address and how the attempt failed. An edge that `is_relayed` goes through
    /// ssh: it has one rail, and does not try RDMA unless the user insists on that.
    /// Fails if the peer was found and the edge cannot be connected all the same.
    /// Dropping the future closes what it has opened.
    pub(crate) async fn dial(
        &self,
        addresses: &[String],
        port: u16,
        is_relayed: bool,
    ) -> Result<Result<Stream, Vec<(String, String)>>, String> {
        let mut config = self.config.clone();
        if is_relayed {
            config.rails = Rails::One;
            if config.transport == TransportPolicy::Auto {
                config.transport = TransportPolicy::Tcp;
            }
        }
        match reach::dial(addresses, port, &self.key, &config).await {
            Ok(stream) => Ok(Ok(stream)),
            Err(Unreached::Final(error)) => Err(self.unconnected(error)),
            Err(Unreached::Nowhere(tried)) => {
                let tried = tried.into_iter().map(|tried| (tried.address, tried.what));
                Ok(Err(tried.collect()))
            }
        }
    }

    /// Listens on a free port, and waits until one is free. An edge frees its port when it is connected, so the
    /// edges of a host with one open port take turns.
    /// Cancel safe: dropping the future leaves no listener behind.
    pub(crate) async fn listen(&self) -> Result<Listener, String> {
        let given_up = Instant::now() + PORT_LIMIT;
        loop {
            match reach::listen(None, self.ports, &self.key, &self.config).await {
                Err(Error::Listen { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < given_up =>
                {
                    sleep(PORT_INTERVAL).await;
                }
                opened => return opened.map_err(|error| self.cannot_listen(&error)),
            }
        }
    }

    fn cannot_listen(&self, error: &Error) -> String {
        let Error::Listen { source, .. } = error else {
            return Advised(error.clone()).to_string();
        };
        match self.ports {
            None => format!("cannot listen: {source}"),
            Some((first, last)) if first == last => {
                format!("cannot listen on port {first}: {source}; see -p")
            }
            Some((first, last)) => {
                format!("cannot listen on any of the ports {first}-{last}: {source}; see -p")
            }
        }
    }

    /// Returns the message for an edge that cannot be connected.
    pub(crate) fn unconnected(&self, error: Error) -> String {
        let peer = &self.peer;
        format!("cannot connect to {peer}: {}", about_peer(error, peer))
    }
}

/// Describes what carries `stream`.
pub(crate) fn describe_link(stream: &Stream) -> EdgeLink {
    EdgeLink {
        transport: stream.transport(),
        reason: stream.transport_reason().to_owned(),
        is_fallback: stream.is_fallback(),
        cipher: stream.cipher(),
        rails: u16::try_from(stream.rails()).unwrap_or(u16::MAX),
        address: stream.peer_addr().ip().to_string(),
    }
}

/// Returns the error with `name` in place of the peer's address, and with advice for the user. `name` is the peer's
/// name in messages: "stage 2 (fs2)".
pub(crate) fn about_peer(error: Error, name: &str) -> Advised {
    let mut error = error;
    match &mut error {
        Error::Handshake { peer, .. }
        | Error::Send { peer, .. }
        | Error::Receive { peer, .. }
        | Error::Unconfirmed { peer, .. }
        | Error::PeerAborted { peer, .. }
        | Error::Stopped { peer, .. } => name.clone_into(peer),
        _ => {}
    }
    Advised(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_stage_and_not_its_address() {
        let error = Error::PeerAborted {
            peer: "10.0.0.1".into(),
            offset: 7,
            reason: "stage 1 (a): killed".into(),
        };
        let text = about_peer(error, "stage 2 (b)").to_string();
        assert_eq!(text, "stage 2 (b) gave up at byte 7: stage 1 (a): killed");
    }
}
