//! Dialing: resolves the host, connects, and tries again while the acceptor is not there yet.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    connections::Connector,
    handshake::{self, FirstMessage, Negotiated},
};
use crate::{
    Error, HandshakeFault, Key, StreamConfig,
    config::LONGEST_LIMIT,
    threads::{self, lookup_host},
    transport::{rdma, stream::Stream},
};

/// The pause between two rounds of attempts. It is short, because most often the acceptor is being started at the same
/// time.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// The time limit for one address, so that one dead address does not keep a host from being reached.
pub(super) const ADDRESS_LIMIT: Duration = Duration::from_secs(1);

/// Connects to the acceptor at `peer`: `"host:port"`, `("host", port)`, a `SocketAddr`, or another of
/// [`ToPeerAddress`].
///
/// Tries every address of the host again and again for [`StreamConfig::retry_for`]. A connection that breaks before the
/// stream exists is tried again for as long: an acceptor to which many strangers connect closes some connections before
/// it has seen whether they have the key. All of it together, with the handshake, takes at most
/// [`StreamConfig::connect_timeout`].
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
    peer: impl ToPeerAddress,
    key: &Key,
    config: &StreamConfig,
) -> Result<Stream, Error> {
    let peer = peer.to_peer_address()?;
    let limits = DialLimits::start(config);
    let addresses = timeout_at(limits.deadline, resolve(&peer)).await;
    let late = |_| Err(unresolved(&peer, io::ErrorKind::TimedOut.into()));
    let addresses = addresses.unwrap_or_else(late)?;
    let connectors: Vec<_> = addresses
        .into_iter()
        .map(|address| move || TcpStream::connect(address))
        .collect();
    let dialing = Dialing {
        host: peer.host(),
        peer: format!("{} port {}", peer.host(), peer.port()),
        may_spread: true,
        key,
        config,
        limits,
    };
    dialing.run(&connectors).await
}

/// Connects to the acceptor that `open` opens TCP connections to: through a proxy, from a source address, or from a
/// network namespace of the caller's choice. `peer` names the acceptor in messages.
///
/// A stream has a control connection and, over TCP, a data connection, and an attempt may be repeated. So `open` is
/// called any number of times, and every connection must lead to the same acceptor. Over RDMA the data goes directly to
/// the peer's device: use [`TransportPolicy::Tcp`](crate::TransportPolicy::Tcp) if it must not.
///
/// ```
/// # use rdpipe::{Key, Stream};
/// use tokio::net::TcpSocket;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let builder = Stream::builder(&Key::generate()?);
/// # let listener = builder.bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr();
/// let from_here = || async {
///     let socket = TcpSocket::new_v4()?;
///     socket.bind("127.0.0.1:0".parse().unwrap())?; // a source address
///     socket.connect(address).await
/// };
/// let dialing = builder.connect_with("hostB", from_here);
/// let (stream, _) = tokio::try_join!(dialing, listener.accept())?;
/// assert_eq!(stream.peer(), "hostB");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Those of [`connect`].
///
/// # Cancel safety
///
/// Dropping the future closes what it had opened; the acceptor goes on listening.
pub async fn connect_with<F>(
    peer: &str,
    open: impl Fn() -> F,
    key: &Key,
    config: &StreamConfig,
) -> Result<Stream, Error>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    let dialing = Dialing {
        host: peer,
        peer: peer.to_owned(),
        may_spread: false,
        key,
        config,
        limits: DialLimits::start(config),
    };
    dialing.run(&[open]).await
}

async fn resolve(peer: &PeerAddress) -> Result<Vec<std::net::SocketAddr>, Error> {
    let looked_up = lookup_host(peer.host(), peer.port()).await;
    let addresses = looked_up.map_err(|source| unresolved(peer, source))?;
    if addresses.is_empty() {
        let none = io::Error::new(io::ErrorKind::NotFound, "it has no address");
        return Err(unresolved(peer, none));
    }
    Ok(addresses)
}

fn unresolved(peer: &PeerAddress, source: io::Error) -> Error {
    Error::Resolve {
        host: peer.host().to_owned(),
        source: Arc::new(source),
    }
}

/// The time limits of one call of [`connect`].
#[derive(Clone, Copy)]
struct DialLimits {
    started: Instant,
    /// Until when failed attempts are repeated.
    retry_until: Instant,
    /// Until when there must be a stream.
    deadline: Instant,
}

impl DialLimits {
    fn start(config: &StreamConfig) -> Self {
        let started = Instant::now();
        let deadline = started + config.connect_timeout.min(LONGEST_LIMIT);
        let retry_until = started + config.retry_for.min(LONGEST_LIMIT);
        Self {
            started,
            retry_until: retry_until.min(deadline),
            deadline,
        }
    }

    fn may_retry(&self) -> bool {
        Instant::now() + PAUSE < self.retry_until
    }

    /// Returns the time that is left, at most `limit`.
    fn left(&self, limit: Duration) -> Duration {
        self.deadline.duration_since(Instant::now()).min(limit)
    }
}

/// The reason why an attempt failed.
enum DialError {
    /// The acceptor is not there yet, or too busy to answer. Another attempt may succeed.
    NotYet(io::Error),
    /// Another attempt would fail as well.
    Final(HandshakeFault),
}

/// One call of [`connect`].
struct Dialing<'a> {
    /// The name of the peer.
    host: &'a str,
    /// The name of the peer and its port, for messages.
    peer: String,
    /// True if the data connections may lead to other addresses of the peer.
    may_spread: bool,
    key: &'a Key,
    config: &'a StreamConfig,
    limits: DialLimits,
}

impl Dialing<'_> {
    /// Tries every connector in turn, and again until one works.
    async fn run<C, F>(&self, connectors: &[C]) -> Result<Stream, Error>
    where
        C: Fn() -> F,
        F: Future<Output = io::Result<TcpStream>>,
    {
        rdma::LocalPorts::check(self.config)?;
        // Without a second processor a thread does not make it sooner.
        if threads::is_parallel() {
            rdma::prepare(self.config);
        }
        let mut cause = None;
        loop {
            for connector in connectors {
                match self.attempt(connector).await {
                    Ok(negotiated) => {
                        return Ok(Stream::start(negotiated, self.config, None)?.granted());
                    }
                    Err(DialError::Final(fault)) => {
                        return Err(Error::Handshake {
                            peer: self.host.to_owned(),
                            fault,
                        });
                    }
                    Err(DialError::NotYet(error)) => note_cause(&mut cause, error),
                }
            }
            if !self.limits.may_retry() {
                return Err(Error::Connect {
                    peer: self.peer.clone(),
                    tried: self.limits.started.elapsed(),
                    source: Arc::new(cause.unwrap_or_else(|| io::ErrorKind::TimedOut.into())),
                });
            }
            sleep(PAUSE).await;
        }
    }

    async fn attempt<F>(&self, open: impl Fn() -> F) -> Result<Negotiated, DialError>
    where
        F: Future<Output = io::Result<TcpStream>>,
    {
        let first = FirstMessage::new(self.key);
        let socket = match timeout(self.limits.left(ADDRESS_LIMIT), open()).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return Err(DialError::NotYet(error)),
            Err(_) => return Err(DialError::NotYet(io::ErrorKind::TimedOut.into())),
        };
        let limit = self.limits.left(self.config.handshake_timeout);
        // Boxed: it is many times larger than the rest of `connect`.
        let connector = Connector {
            open,
            may_spread: self.may_spread,
        };
        let dialing = handshake::dial(socket, self.host, first, self.config, connector);
        match timeout(limit, Box::pin(dialing)).await {
            Ok(Ok(negotiated)) => Ok(negotiated),
            Ok(Err(HandshakeFault::Broken(error))) if self.limits.may_retry() => {
                Err(DialError::NotYet(io::Error::new(error.kind(), error)))
            }
            Ok(Err(fault)) => Err(DialError::Final(fault)),
            Err(_) => Err(DialError::Final(HandshakeFault::Timeout(limit))),
        }
    }
}

/// Keeps the error that tells most: an attempt that the deadline cut off does not hide an earlier refusal.
fn note_cause(cause: &mut Option<io::Error>, error: io::Error) {
    if cause.is_none() || error.kind() != io::ErrorKind::TimedOut {
        *cause = Some(error);
    }
}

/// The host and the port of a peer. The host is a name, an IPv4 address or an IPv6 address without brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    host: String,
    port: u16,
}

impl PeerAddress {
    /// Returns the host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        Self { host, port }
    }
}

impl fmt::Display for PeerAddress {
    /// Writes `host:port`, with an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// What [`connect`](crate::connect()) takes as the address of a peer.
///
/// | type | for example |
/// |---|---|
/// | `&str`, `String` | `"hostB:12345"`, `"192.0.2.7:12345"`, `"[2001:db8::7]:12345"` |
/// | `(&str, u16)`, `(String, u16)` | `("hostB", 12345)`, `("2001:db8::7", 12345)` |
/// | `SocketAddr`, `SocketAddrV4`, `SocketAddrV6`, `(IpAddr, u16)` and so on | `listener.local_addr()` |
/// | [`PeerAddress`] | |
pub trait ToPeerAddress {
    /// Returns the host and the port.
    ///
    /// # Errors
    ///
    /// [`Error::Resolve`] if a text is no host and port.
    fn to_peer_address(&self) -> Result<PeerAddress, Error>;
}

impl ToPeerAddress for str {
    fn to_peer_address(&self) -> Result<PeerAddress, Error> {
        parse(self).map_err(|reason| Error::Resolve {
            host: self.to_owned(),
            source: Arc::new(io::Error::new(io::ErrorKind::InvalidInput, reason)),
        })
    }
}

fn parse(text: &str) -> Result<PeerAddress, &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("give it as host:port")?;
    let port = port
        .parse()
        .map_err(|_| "its port is no number from 0 to 65535")?;
    let bracketed = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(address) => Ok(PeerAddress::new(address, port)),
        None if host.contains(':') => Err("put an IPv6 address in brackets: [address]:port"),
        None if host.is_empty() => Err("it has no host before the port"),
        None => Ok(PeerAddress::new(host, port)),
    }
}

impl ToPeerAddress for String {
    fn to_peer_address(&self) -> Result<PeerAddress, Error> {
        self.as_str().to_peer_address()
    }
}

impl ToPeerAddress for PeerAddress {
    fn to_peer_address(&self) -> Result<PeerAddress, Error> {
        Ok(self.clone())
    }
}

impl ToPeerAddress for SocketAddr {
    fn to_peer_address(&self) -> Result<PeerAddress, Error> {
        match self {
            Self::V4(address) => address.to_peer_address(),
            Self::V6(address) => address.to_peer_address(),
        }
    }
}

impl ToPeerAddress for SocketAddrV6 {
    fn to_peer_address(&self) -> Result<PeerAddress, Error> {
        // A link-local address means nothing without its interface.
        let host = match self.scope_id() {
            0 => self.ip().to_string(),
            scope => format!("{}%{scope}", self.ip()),
        };
        Ok(PeerAddress::new(host, self.port()))
    }
}

impl ToPeerAddress for SocketAddrV4 {
    fn to_peer_address(&self) -> Result<PeerAddress, Error> {
        (*self.ip(), self.port()).to_peer_address()
    }
}

/// Implements the trait for pairs of a host and a port.
macro_rules! pairs {
    ($($host:ty),*) => {
        $(impl ToPeerAddress for ($host, u16) {
            fn to_peer_address(&self) -> Result<PeerAddress, Error> {
                Ok(PeerAddress::new(self.0.to_string(), self.1))
            }
        })*
    };
}

pairs!(&str, String, IpAddr, Ipv4Addr, Ipv6Addr);

impl<T: ToPeerAddress + ?Sized> ToPeerAddress for &T {
    fn to_peer_address(&self) -> Result<PeerAddress, Error> {
        (**self).to_peer_address()
    }
}

#[cfg(feature = "rdma")]
impl crate::RdmaStream {
    /// Connects to the acceptor at `peer` over RDMA, as [`connect`] does. Ignores
    /// [`StreamConfig::transport`].
    ///
    /// # Errors
    ///
    /// - [`Error::Device`] if this host has no usable RDMA.
    /// - [`Refused`](crate::HandshakeFault::Refused) or [`Transport`](crate::HandshakeFault::Transport) in an
    ///   [`Error::Handshake`], if the peer has no usable RDMA, if no RDMA network joins the two hosts, or if no message
    ///   crossed it. Which of the two it is depends on the end that detects the failure first.
    /// - Otherwise the errors of [`connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it had opened. The acceptor continues to listen.
    pub async fn connect(
        peer: impl ToPeerAddress,
        key: &Key,
        config: &StreamConfig,
    ) -> Result<Self, Error> {
        let mut config = config.clone();
        config.transport = crate::TransportPolicy::Rdma;
        Ok(connect(peer, key, &config).await?.try_into()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(peer: impl ToPeerAddress) -> String {
        peer.to_peer_address().unwrap().to_string()
    }

    #[test]
    fn every_usual_form_is_understood() {
        assert_eq!(shown("hostB:12345"), "hostB:12345");
        assert_eq!(shown("192.0.2.7:1"), "192.0.2.7:1");
        assert_eq!(shown("[::1]:65535"), "[::1]:65535");
        assert_eq!(shown(String::from("hostB:1")), "hostB:1");
        assert_eq!(shown(("hostB", 1)), "hostB:1");
        assert_eq!(shown(("::1", 1)), "[::1]:1");
        assert_eq!(shown((Ipv4Addr::LOCALHOST, 1)), "127.0.0.1:1");
        for text in ["127.0.0.1:80", "[::1]:80", "[fe80::1%3]:80"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(shown(address), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for (text, reason) in [
            ("hostB", "give it as host:port"),
            ("", "give it as host:port"),
            (":80", "no host"),
            ("hostB:", "its port"),
            ("hostB:65536", "its port"),
            ("hostB:http", "its port"),
            ("::1:80", "brackets"),
        ] {
            let error = text.to_peer_address().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
