//! What a forwarded connection is connected to, and what the other end may have this host connect to. Pure, no I/O.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use super::specs::is_name;
use crate::printable::with_spaces;

/// What the other end of a tunnel may have this host connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ForwardPolicy {
    /// Every target, as this user may connect to every target without the tunnel.
    Any,
    /// The targets that `--allow` names, and no UNIX socket.
    Only(Vec<AllowedPorts>),
}

/// A value of `--allow`: ports of one host.
///
/// Names are compared as texts, without regard to case and to a dot at the end: that two names have the same address
/// does not make them equal. So a name that is allowed is resolved only when the connection is made, and what it leads
/// to is up to the resolver of this host. Addresses are compared as addresses; an IPv4 address that is written as an
/// IPv6 address is the IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllowedPorts {
    host: AllowedHost,
    first: u16,
    last: u16,
}

impl ForwardPolicy {
    /// Returns the policy of these values of `--allow`; without any, every target is allowed.
    pub(crate) fn of(allowed: &[AllowedPorts]) -> Self {
        match allowed {
            [] => Self::Any,
            allowed => Self::Only(allowed.to_vec()),
        }
    }

    /// Returns a value of `-L` by which the other end reaches the first target that is allowed.
    pub(crate) fn example(&self) -> String {
        let (port, host) = match self {
            Self::Only(allowed) if !allowed.is_empty() => {
                let AllowedPorts { host, first, .. } = &allowed[0];
                let host = match host {
                    AllowedHost::Loopback => "localhost".to_owned(),
                    AllowedHost::Address(IpAddr::V6(address)) => format!("[{address}]"),
                    AllowedHost::Address(address) => address.to_string(),
                    AllowedHost::Name(name) => name.clone(),
                };
                (first.to_string(), host)
            }
            _ => ("PORT".to_owned(), "localhost".to_owned()),
        };
        format!("{port}:{host}:{port}")
    }

    /// Returns true if this host may connect to `target`.
    pub(crate) fn allows(&self, target: &ForwardTarget) -> bool {
        match (self, target) {
            (Self::Any, _) => true,
            (Self::Only(_), ForwardTarget::Unix(_)) => false,
            (Self::Only(allowed), ForwardTarget::Tcp { host, port }) => {
                let host = AllowedHost::of(host);
                allowed.iter().any(|ports| ports.contain(&host, *port))
            }
        }
    }
}

impl AllowedPorts {
    fn contain(&self, host: &AllowedHost, port: u16) -> bool {
        self.host == *host && (self.first..=self.last).contains(&port)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AllowedHost {
    /// `localhost` and every loopback address: programs of this host.
    Loopback,
    Address(IpAddr),
    /// Another name, in lower case and without a dot at its end.
    Name(String),
}

impl AllowedHost {
    fn of(host: &str) -> Self {
        if let Ok(address) = host.parse::<IpAddr>() {
            return match address.to_canonical() {
                address if address.is_loopback() => Self::Loopback,
                address => Self::Address(address),
            };
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if name == "localhost" {
            Self::Loopback
        } else {
            Self::Name(name)
        }
    }
}

/// The reason why a value of `--allow` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllowError {
    /// The ports are neither a port nor a range.
    #[error(
        "give a port, a range, or HOST and one of them, for example 5432, 6379-6400 or db:5432; a port is a number from 1 to 65535"
    )]
    Ports,
    /// The last port of a range is lower than the first.
    #[error("the range {first}-{last} is empty; give the lower port first, as {last}-{first}")]
    Empty {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
    },
    /// The host is no name and no address.
    #[error(
        "{0:?} is no host; give a name, an IPv4 address, or an IPv6 address in brackets before the port"
    )]
    Host(String),
}

impl FromStr for AllowedPorts {
    type Err = AllowError;

    /// Parses `[HOST:]PORT[-PORT]`. Without HOST the ports are those of `localhost`.
    fn from_str(text: &str) -> Result<Self, AllowError> {
        let (host, ports) = match text.rsplit_once(':') {
            None => (AllowedHost::Loopback, text),
            Some((host, ports)) => (typed_host(host)?, ports),
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let port = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse()
                .ok()
                .filter(|&port: &u16| port != 0 && is_number)
        };
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first > last => Err(AllowError::Empty { first, last }),
            (Some(first), Some(last)) => Ok(Self { host, first, last }),
            _ => Err(AllowError::Ports),
        }
    }
}

/// Parses HOST of `HOST:PORT`, where an IPv6 address stands in brackets.
fn typed_host(host: &str) -> Result<AllowedHost, AllowError> {
    let wrong = || AllowError::Host(host.to_owned());
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_v6 = |text: &str| {
        text.parse::<IpAddr>()
            .is_ok_and(|address| address.is_ipv6())
    };
    match inner {
        Some(address) if is_v6(address) => Ok(AllowedHost::of(address)),
        None if is_name(host) && !host.contains(':') => Ok(AllowedHost::of(host)),
        _ => Err(wrong()),
    }
}

impl fmt::Display for AllowedPorts {
    /// Writes the form that [`AllowedPorts::from_str`] accepts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            AllowedHost::Loopback => {}
            AllowedHost::Address(IpAddr::V6(address)) => write!(f, "[{address}]:")?,
            AllowedHost::Address(address) => write!(f, "{address}:")?,
            AllowedHost::Name(name) => write!(f, "{name}:")?,
        }
        match (self.first, self.last) {
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

/// The socket that a forwarded connection is connected to, as the connecting host names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ForwardTarget {
    Tcp {
        /// A name or an address, which the connecting host resolves. An IPv6 address has no brackets.
        host: String,
        port: u16,
    },
    /// The path of a UNIX socket, as bytes.
    Unix(Vec<u8>),
}

impl fmt::Display for ForwardTarget {
    /// Writes `HOST:PORT`, `[ADDRESS]:PORT` or the path. The other end may have chosen the text, so spaces
    /// are in place of what is not printable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(path) => String::from_utf8_lossy(path).into_owned(),
        };
        f.write_str(&with_spaces(&text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(values: &str) -> ForwardPolicy {
        let allowed = values.split(',').map(|value| value.parse().unwrap());
        ForwardPolicy::of(&allowed.collect::<Vec<_>>())
    }

    fn allows(values: &str, host: &str, port: u16) -> bool {
        let host = host.to_owned();
        policy(values).allows(&ForwardTarget::Tcp { host, port })
    }

    #[test]
    fn the_example_leads_to_the_first_target() {
        for (value, example) in [
            ("5432", "5432:localhost:5432"),
            ("db:80-90", "80:db:80"),
            ("[fd00::7]:80", "80:[fd00::7]:80"),
        ] {
            let policy = ForwardPolicy::of(&[value.parse().unwrap()]);
            assert_eq!(policy.example(), example);
        }
        assert_eq!(ForwardPolicy::Any.example(), "PORT:localhost:PORT");
    }

    #[test]
    fn ports_alone_are_those_of_this_host() {
        let values = "5432,6379-6400";
        for host in [
            "localhost",
            "LocalHost.",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
        ] {
            for port in [5432, 6379, 6385, 6400] {
                assert!(allows(values, host, port), "{host} {port}");
            }
            for port in [0, 5431, 5433, 6378, 6401] {
                assert!(!allows(values, host, port), "{host} {port}");
            }
        }
        for host in [
            "db",
            "localhost..",
            "localhost.localdomain",
            "x.localhost",
            "10.0.0.1",
            "0.0.0.0",
            "::",
            "[::1]",
            "127.1",
            "0x7f000001",
            "2130706433",
            "::1%lo",
            "",
        ] {
            assert!(!allows(values, host, 5432), "{host}");
        }
    }

    #[test]
    fn a_host_that_is_named_is_allowed_with_its_ports() {
        let values = "DB.example.:5432,10.0.0.7:80-81,[fd00::7]:80";
        for (host, port) in [
            ("db.example", 5432),
            ("Db.Example.", 5432),
            ("10.0.0.7", 80),
            ("::ffff:10.0.0.7", 81),
            ("fd00::7", 80),
            ("fd00:0:0::7", 80),
        ] {
            assert!(allows(values, host, port), "{host} {port}");
        }
        for (host, port) in [
            ("db", 5432),
            ("db.example", 5433),
            ("localhost", 5432),
            ("10.0.0.8", 80),
            ("fd00::7", 81),
            ("db.example", 80),
        ] {
            assert!(!allows(values, host, port), "{host} {port}");
        }
    }

    #[test]
    fn sockets_of_unix_are_allowed_only_without_a_list() {
        let socket = ForwardTarget::Unix(b"/run/x".to_vec());
        assert!(!policy("1-65535").allows(&socket));
        let any = ForwardPolicy::of(&[]);
        assert_eq!(any, ForwardPolicy::Any);
        assert!(any.allows(&socket));
        let (host, port) = ("elsewhere".to_owned(), 1);
        assert!(any.allows(&ForwardTarget::Tcp { host, port }));
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_right_form() {
        let fault = |text: &str| text.parse::<AllowedPorts>().unwrap_err().to_string();
        for text in [
            "", "x", "0", "65536", "1-", "-1", "1-2-3", "+1", "db:", "db:x", "5432:db",
        ] {
            assert!(fault(text).contains("for example 5432"), "{text}");
        }
        assert!(fault("9-8").contains("as 8-9"));
        for text in [
            ":1",
            "::1:1",
            "[db]:1",
            "[10.0.0.1]:1",
            "a b:1",
            "*:1",
            "/run/x:1",
        ] {
            assert!(fault(text).contains("is no host"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_value_survives_its_text(text in "([a-z]{1,5}:|[0-9]{1,3}\\.0\\.0\\.1:|\\[::[0-9]\\]:)?[0-9]{1,5}(-[0-9]{1,5})?") {
            if let Ok(ports) = text.parse::<AllowedPorts>() {
                prop_assert_eq!(ports.to_string().parse(), Ok(ports));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text: String, host: String, port: u16) {
            let _ = text.parse::<AllowedPorts>();
            let _ = policy("1").allows(&ForwardTarget::Tcp { host, port });
        }
    }

    #[test]
    fn a_target_is_shown_as_a_user_types_it() {
        let tcp = |host: &str, port| ForwardTarget::Tcp {
            host: host.to_owned(),
            port,
        };
        assert_eq!(tcp("db", 5432).to_string(), "db:5432");
        assert_eq!(tcp("10.0.0.1", 1).to_string(), "10.0.0.1:1");
        assert_eq!(tcp("::1", 80).to_string(), "[::1]:80");
        assert_eq!(
            ForwardTarget::Unix(b"/run/x.sock".to_vec()).to_string(),
            "/run/x.sock"
        );
        assert_eq!(
            ForwardTarget::Unix(b"/run/\xff".to_vec()).to_string(),
            "/run/\u{fffd}"
        );
        let nasty = tcp("a\u{1b}[2Jb", 1);
        assert_eq!(nasty.to_string(), "a [2Jb:1");
    }
}
