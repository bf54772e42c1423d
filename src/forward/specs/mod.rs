//! The forms of `-L`, `-R` and `-D`, as ssh has them. Pure, no I/O.

mod parse;
#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

pub(crate) use self::parse::is_name;
use super::target::ForwardTarget;

/// The value of `-L` or `-R`: where one end listens, and what the other end connects each connection to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardSpec {
    /// The socket that listens.
    pub(crate) listen: ListenAt,
    /// The socket that each accepted connection is connected to.
    pub(crate) target: ForwardTarget,
}

/// A socket that listens. The value of `-D` is one of TCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ListenAt {
    /// A TCP port.
    Tcp {
        /// The addresses of the port.
        bind: BindAddress,
        /// The port; 0 takes any free one.
        port: u16,
    },
    /// The path of a UNIX socket, as bytes.
    Unix(Vec<u8>),
}

/// The addresses of the host at which a port listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BindAddress {
    /// 127.0.0.1 and `::1`: only programs of the host itself can connect. This is the default, and `localhost`.
    Loopback,
    /// All addresses of the host: `*`, or nothing before the colon.
    All,
    /// One address of the host.
    Address(IpAddr),
    /// A name of the host, or an IPv6 address with a zone, which the host that listens resolves.
    Name(String),
}

/// Writes the form that [`ForwardSpec::parse`] accepts. A path that is not UTF-8 is shown with replacements.
impl fmt::Display for ForwardSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.listen)?;
        match &self.target {
            ForwardTarget::Unix(path) => write_path(f, path),
            target @ ForwardTarget::Tcp { .. } => target.fmt(f),
        }
    }
}

/// Writes the form that [`ListenAt::parse_dynamic`] and the first part of [`ForwardSpec::parse`] accept.
impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { bind, port } => match bind {
                BindAddress::Loopback => write!(f, "{port}"),
                BindAddress::All => write!(f, "*:{port}"),
                BindAddress::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{port}"),
                BindAddress::Address(IpAddr::V4(address)) => write!(f, "{address}:{port}"),
                BindAddress::Name(name) if name.contains(':') => write!(f, "[{name}]:{port}"),
                BindAddress::Name(name) => write!(f, "{name}:{port}"),
            },
            Self::Unix(path) => write_path(f, path),
        }
    }
}

/// Writes a path with a backslash before each colon and backslash, as ssh reads it.
fn write_path(f: &mut fmt::Formatter<'_>, path: &[u8]) -> fmt::Result {
    for c in String::from_utf8_lossy(path).chars() {
        if matches!(c, ':' | '\\') {
            f.write_str("\\")?;
        }
        write!(f, "{c}")?;
    }
    Ok(())
}
