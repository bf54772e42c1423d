//! The address of a peer, as a program writes it: a host and a port. Pure, no I/O.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    sync::Arc,
};

use crate::Error;

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
