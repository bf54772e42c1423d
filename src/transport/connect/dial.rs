//! Dialing: resolves the host, connects, and tries again while the acceptor is not there yet.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    handshake::FirstMessage,
    negotiate::{self, Negotiated},
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig,
    config::LONGEST_LIMIT,
    transport::{rdma, stream::stream::Stream},
};

/// The pause between two rounds of attempts. It is short, because most often the acceptor is being started at the same time.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The time limit for one address, so that one dead address does not keep a host from being reached.
const ADDRESS_LIMIT: Duration = Duration::from_secs(1);

/// Connects to the acceptor at `host` and `port`, trying every address of the host again and
/// again for [`StreamConfig::connect_timeout`]. `host` is a name, an IPv4 address or an IPv6
/// address without brackets.
///
/// A connection that breaks before the stream exists is tried again for as long: an acceptor to which many strangers
/// connect closes some connections before it has seen whether they have the key.
///
/// # Errors
///
/// [`Error::Resolve`], [`Error::Connect`] or [`Error::Handshake`]; wrong keys and differing
/// versions fail at once.
///
/// # Cancel safety
///
/// Dropping the future closes what it had opened; the acceptor goes on listening.
pub async fn connect(
    host: &str,
    port: u16,
    key: &Key,
    config: &StreamConfig,
) -> Result<Stream, Error> {
    rdma::LocalPorts::check(config)?;
    let started = Instant::now();
    let deadline = started + config.connect_timeout.min(LONGEST_LIMIT);
    let addresses = resolve(host, port).await?;
    loop {
        let mut last = None;
        for address in &addresses {
            match attempt(*address, host, key, config, deadline).await {
                Ok(negotiated) => return Ok(Stream::start(negotiated, config)?.granted()),
                Err(DialError::Final(fault)) => {
                    return Err(Error::Handshake {
                        peer: host.to_owned(),
                        fault,
                    });
                }
                Err(DialError::NotYet(error)) => last = Some(error),
            }
        }
        if Instant::now() + PAUSE >= deadline {
            let source = last.unwrap_or_else(|| io::ErrorKind::TimedOut.into());
            return Err(Error::Connect {
                peer: format!("{host} port {port}"),
                tried: started.elapsed(),
                source: Arc::new(source),
            });
        }
        sleep(PAUSE).await;
    }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    let failed = |source| Error::Resolve {
        host: host.to_owned(),
        source: Arc::new(source),
    };
    let addresses: Vec<_> = lookup_host((host, port)).await.map_err(failed)?.collect();
    if addresses.is_empty() {
        return Err(failed(io::Error::new(
            io::ErrorKind::NotFound,
            "it has no address",
        )));
    }
    Ok(addresses)
}

/// Why an attempt failed.
enum DialError {
    /// The acceptor is not there yet, or too busy to answer. Another attempt may succeed.
    NotYet(io::Error),
    /// Another attempt would fail as well.
    Final(HandshakeFault),
}

async fn attempt(
    address: SocketAddr,
    host: &str,
    key: &Key,
    config: &StreamConfig,
    deadline: Instant,
) -> Result<Negotiated, DialError> {
    let first = FirstMessage::new(key);
    let limit = deadline.min(Instant::now() + ADDRESS_LIMIT);
    let socket = match timeout_at(limit, TcpStream::connect(address)).await {
        Ok(Ok(socket)) => socket,
        Ok(Err(error)) => return Err(DialError::NotYet(error)),
        Err(_) => return Err(DialError::NotYet(io::ErrorKind::TimedOut.into())),
    };
    let limit = config.handshake_timeout;
    // Boxed: it is many times larger than the rest of `connect`.
    let dialing = Box::pin(negotiate::dial(socket, host, first, config));
    match timeout(limit, dialing).await {
        Ok(Ok(negotiated)) => Ok(negotiated),
        Ok(Err(HandshakeFault::Broken(error))) if Instant::now() + PAUSE < deadline => {
            Err(DialError::NotYet(io::Error::new(error.kind(), error)))
        }
        Ok(Err(fault)) => Err(DialError::Final(fault)),
        Err(_) => Err(DialError::Final(HandshakeFault::Timeout(limit))),
    }
}
