//! What a forwarded connection is connected to.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The socket that a forwarded connection is connected to, as the connecting host names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ForwardTarget {
    /// A TCP port.
    Tcp {
        /// A name or an address, which the connecting host resolves. An IPv6 address has no brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a UNIX socket, as bytes.
    Unix(Vec<u8>),
}

impl fmt::Display for ForwardTarget {
    /// Writes `HOST:PORT`, `[ADDRESS]:PORT` or the path. The other end may have chosen the text, so control characters are
    /// replaced by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(path) => String::from_utf8_lossy(path).into_owned(),
        };
        f.write_str(&text.replace(char::is_control, " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
