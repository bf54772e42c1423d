//! The forms of `-L`, `-R` and `-D`, as ssh has them. Pure, no I/O.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str,
};

use serde::{Deserialize, Serialize};

use super::policy::ForwardTarget;
use crate::printable::is_printable;

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

/// The most bytes of the path of a UNIX socket on Linux, without the byte that ends it.
pub(crate) const MAX_PATH_BYTES: usize = 107;

/// The reason why a value of `-L`, `-R` or `-D` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    /// The value has too few or too many parts, or an unexpected path among them.
    #[error(
        "give [BIND:]PORT:HOST:PORT, [BIND:]PORT:/PATH, /PATH:HOST:PORT or /PATH:/PATH; an IPv6 address stands in brackets"
    )]
    Form,
    /// The value of `-D` is not a port with or without an address.
    #[error("give [BIND:]PORT, for example 1080 or localhost:1080")]
    DynamicForm,
    /// The value says where to listen, and not what to connect to.
    #[error(
        "there is no target after the port; give PORT:HOST:PORT or PORT:/PATH, for example 5432:localhost:5432"
    )]
    NoTarget,
    /// A part that must be a port is none.
    #[error("{0:?} is no port; give a number from 0 to 65535, where 0 takes any free port")]
    ListenPort(String),
    /// The port of a target is none.
    #[error("{0:?} is no port to connect to; give a number from 1 to 65535")]
    TargetPort(String),
    /// The host of a target is no name and no address.
    #[error(
        "{0:?} is no host to connect to; give a name, an IPv4 address, or an IPv6 address in brackets"
    )]
    Host(String),
    /// The address at which to listen is none.
    #[error(
        "{0:?} is no address to listen at; give localhost, * for all addresses, an IPv4 address, or an IPv6 address in brackets"
    )]
    Bind(String),
    /// Brackets that do not enclose an IPv6 address.
    #[error("brackets enclose an IPv6 address, with a colon after them, as in [::1]:5432")]
    Brackets,
    /// The path of a UNIX socket is too long for the system.
    #[error(
        "the path of a UNIX socket has at most {MAX_PATH_BYTES} bytes, and this one has {0}; give a shorter path"
    )]
    LongPath(usize),
    /// The path of a UNIX socket contains a byte 0.
    #[error("the path of a UNIX socket cannot contain a zero byte; give another path")]
    ZeroByte,
}

impl ForwardSpec {
    /// Parses the value of `-L` or `-R`. A part with a `/` is the path of a UNIX socket. In a path, `\:` is a colon and
    /// `\\` a backslash, as in ssh.
    /// The error names what is wrong, and the right form.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, SpecError> {
        let parts = parts(text)?;
        if parts.len() > MAX_PARTS {
            return Err(SpecError::Form);
        }
        let (listen, target) = match &parts[..] {
            [Part::Path(listen), rest @ ..] => (ListenAt::Unix(listen.clone()), rest),
            [bind, port, rest @ ..] if takes_two(&parts) => (tcp(Some(bind), port)?, rest),
            [port, rest @ ..] => (tcp(None, port)?, rest),
            [] => return Err(SpecError::Form), // There is always a part, if only an empty one.
        };
        let target = match target {
            [] => return Err(SpecError::NoTarget),
            [Part::Path(path)] => ForwardTarget::Unix(path.clone()),
            [host, port] => ForwardTarget::Tcp {
                host: target_host(host)?,
                port: target_port(port)?,
            },
            _ => return Err(SpecError::Form),
        };
        Ok(Self { listen, target })
    }
}

impl ListenAt {
    /// Parses the value of `-D`.
    /// The error names what is wrong, and the right form.
    pub(crate) fn parse_dynamic(text: &[u8]) -> Result<Self, SpecError> {
        match &parts(text)?[..] {
            [port @ Part::Word(_)] => tcp(None, port),
            [bind, port @ Part::Word(_)] => tcp(Some(bind), port),
            _ => Err(SpecError::DynamicForm),
        }
    }
}

/// The parts of the longest form, `BIND:PORT:HOST:PORT`.
const MAX_PARTS: usize = 4;

/// A part of a value, between colons.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Text without a `/`.
    Word(String),
    /// An IPv6 address that stood in brackets.
    Bracketed(String),
    /// The path of a UNIX socket.
    Path(Vec<u8>),
}

impl Part {
    /// Returns the part as the user typed it, for messages.
    fn shown(&self) -> String {
        match self {
            Self::Word(text) => text.clone(),
            Self::Bracketed(address) => format!("[{address}]"),
            Self::Path(path) => String::from_utf8_lossy(path).into_owned(),
        }
    }
}

/// Returns true if the first two parts of a value that begins with no path are an address and a port:
/// `BIND:PORT:HOST:PORT` and `BIND:PORT:/PATH`. With too few parts the message is about the rest, so an address that is
/// clearly one counts too.
fn takes_two(parts: &[Part]) -> bool {
    match parts {
        [_, _, Part::Path(_)] | [_, _, _, _, ..] | [Part::Bracketed(_), ..] => true,
        [Part::Word(bind), Part::Word(port)] => !is_number(bind) && is_number(port),
        _ => false,
    }
}

/// Splits a value at its colons.
fn parts(text: &[u8]) -> Result<Vec<Part>, SpecError> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = if rest.first() == Some(&b'[') {
            bracketed(&rest[1..])?
        } else {
            unbracketed(rest)?
        };
        parts.push(part);
        match after.split_first() {
            None => return Ok(parts),
            Some((b':', after)) => rest = after,
            Some(_) => return Err(SpecError::Brackets),
        }
    }
}

/// Takes an IPv6 address and its closing bracket from the beginning of `rest`.
fn bracketed(rest: &[u8]) -> Result<(Part, &[u8]), SpecError> {
    let end = rest.iter().position(|&byte| byte == b']');
    let end = end.ok_or(SpecError::Brackets)?;
    let inner = str::from_utf8(&rest[..end]).map_err(|_| SpecError::Brackets)?;
    let (address, zone) = inner.split_once('%').unwrap_or((inner, "none"));
    if address.parse::<Ipv6Addr>().is_err() || !is_name(zone) {
        return Err(SpecError::Brackets);
    }
    Ok((Part::Bracketed(inner.to_owned()), &rest[end + 1..]))
}

/// Takes a word or a path from the beginning of `rest`, up to the next colon.
fn unbracketed(rest: &[u8]) -> Result<(Part, &[u8]), SpecError> {
    let mut taken = Vec::new();
    let mut at = 0;
    while at < rest.len() && rest[at] != b':' {
        if rest[at] == b'\\' && matches!(rest.get(at + 1), Some(b':' | b'\\')) {
            at += 1;
        }
        taken.push(rest[at]);
        at += 1;
    }
    let after = &rest[at..];
    if taken.contains(&b'/') {
        return match taken.len() {
            _ if taken.contains(&0) => Err(SpecError::ZeroByte),
            length if length > MAX_PATH_BYTES => Err(SpecError::LongPath(length)),
            _ => Ok((Part::Path(taken), after)),
        };
    }
    // No port and no host has other characters than these, so what is lost here is only shown.
    let word = String::from_utf8_lossy(&taken).into_owned();
    Ok((Part::Word(word), after))
}

/// Returns the TCP socket that listens at an address and a port.
fn tcp(bind: Option<&Part>, port: &Part) -> Result<ListenAt, SpecError> {
    let bind = match bind {
        None => BindAddress::Loopback,
        Some(Part::Word(word)) => match word.as_str() {
            "" | "*" => BindAddress::All,
            "localhost" => BindAddress::Loopback,
            word => match word.parse() {
                Ok(address) => BindAddress::Address(address),
                Err(_) if is_name(word) => BindAddress::Name(word.to_owned()),
                Err(_) => return Err(SpecError::Bind(word.to_owned())),
            },
        },
        Some(Part::Bracketed(address)) => match address.parse() {
            Ok(address) => BindAddress::Address(IpAddr::V6(address)),
            Err(_) => BindAddress::Name(address.clone()),
        },
        Some(path @ Part::Path(_)) => return Err(SpecError::Bind(path.shown())),
    };
    let number = match port {
        Part::Word(word) => number(word),
        Part::Bracketed(_) | Part::Path(_) => None,
    };
    let port = number.ok_or_else(|| SpecError::ListenPort(port.shown()))?;
    Ok(ListenAt::Tcp { bind, port })
}

fn target_host(part: &Part) -> Result<String, SpecError> {
    match part {
        Part::Word(word) if is_name(word) => Ok(word.clone()),
        Part::Bracketed(address) => Ok(address.clone()),
        part => Err(SpecError::Host(part.shown())),
    }
}

fn target_port(part: &Part) -> Result<u16, SpecError> {
    let number = match part {
        Part::Word(word) => number(word).filter(|&port| port != 0),
        Part::Bracketed(_) | Part::Path(_) => None,
    };
    number.ok_or_else(|| SpecError::TargetPort(part.shown()))
}

/// Parses a port: digits only.
fn number(word: &str) -> Option<u16> {
    word.parse().ok().filter(|_| is_number(word))
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true if a text may be the name of a host: no resolver takes other characters, and a terminal shows these as
/// they are.
pub(crate) fn is_name(text: &str) -> bool {
    let strange = |c: char| c.is_whitespace() || !is_printable(c) || "[]*/\\@\u{fffd}".contains(c);
    !text.is_empty() && !text.starts_with('-') && !text.contains(strange)
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, str};

    use proptest::prelude::*;

    use super::{MAX_PATH_BYTES, SpecError, *};

    fn tcp(bind: BindAddress, port: u16) -> ListenAt {
        ListenAt::Tcp { bind, port }
    }

    fn unix(path: &str) -> ListenAt {
        ListenAt::Unix(path.into())
    }

    fn to(host: &str, port: u16) -> ForwardTarget {
        ForwardTarget::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    fn address(text: &str) -> BindAddress {
        BindAddress::Address(text.parse().unwrap())
    }

    fn parsed(text: &str) -> ForwardSpec {
        ForwardSpec::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn fault(text: &str) -> String {
        match ForwardSpec::parse(text.as_bytes()) {
            Err(error) => error.to_string(),
            Ok(spec) => panic!("{text}: {spec:?}"),
        }
    }

    #[test]
    fn the_forms_of_ssh_work() {
        let socket = ForwardTarget::Unix(b"/run/x".to_vec());
        for (text, listen, target) in [
            ("80:db:5432", tcp(BindAddress::Loopback, 80), to("db", 5432)),
            ("0:db:1", tcp(BindAddress::Loopback, 0), to("db", 1)),
            (
                "localhost:80:db:1",
                tcp(BindAddress::Loopback, 80),
                to("db", 1),
            ),
            ("*:80:db:1", tcp(BindAddress::All, 80), to("db", 1)),
            (":80:db:1", tcp(BindAddress::All, 80), to("db", 1)),
            (
                "10.0.0.1:80:10.0.0.2:1",
                tcp(address("10.0.0.1"), 80),
                to("10.0.0.2", 1),
            ),
            (
                "[::1]:80:[fd00::2]:1",
                tcp(address("::1"), 80),
                to("fd00::2", 1),
            ),
            (
                "80:[fe80::1%eth0]:1",
                tcp(BindAddress::Loopback, 80),
                to("fe80::1%eth0", 1),
            ),
            (
                "[fe80::1%eth0]:80:db:1",
                tcp(BindAddress::Name("fe80::1%eth0".to_owned()), 80),
                to("db", 1),
            ),
            (
                "h1:80:db:1",
                tcp(BindAddress::Name("h1".to_owned()), 80),
                to("db", 1),
            ),
            ("80:/run/x", tcp(BindAddress::Loopback, 80), socket.clone()),
            ("*:80:/run/x", tcp(BindAddress::All, 80), socket.clone()),
            ("[::1]:80:/run/x", tcp(address("::1"), 80), socket.clone()),
            ("/a:db:5432", unix("/a"), to("db", 5432)),
            ("./a:[::1]:5432", unix("./a"), to("::1", 5432)),
            ("/a:/run/x", unix("/a"), socket),
            (r"/a\:b\\c:db:1", unix(r"/a:b\c"), to("db", 1)),
            (r"/a\b:db:1", unix(r"/a\b"), to("db", 1)),
        ] {
            let expected = ForwardSpec { listen, target };
            assert_eq!(parsed(text), expected, "{text}");
            assert_eq!(parsed(&expected.to_string()), expected, "{expected}");
        }
    }

    #[test]
    fn a_path_may_have_any_bytes() {
        let spec = ForwardSpec::parse(b"/\xff:/\xfe").unwrap();
        assert_eq!(spec.listen, ListenAt::Unix(b"/\xff".to_vec()));
        assert_eq!(spec.target, ForwardTarget::Unix(b"/\xfe".to_vec()));
    }

    #[test]
    fn a_wrong_form_is_refused_with_the_right_one() {
        for (text, words) in [
            ("", "no port"),
            ("80", "no target after the port"),
            ("*:80", "no target after the port"),
            ("[::1]:80", "no target after the port"),
            ("/a", "no target after the port"),
            ("80:db", "give [BIND:]PORT:HOST:PORT"),
            ("db:80:1", "\"db\" is no port"),
            ("80:db:1:2:3", "give [BIND:]PORT:HOST:PORT"),
            ("::1:80:db:1", "give [BIND:]PORT:HOST:PORT"),
            ("80:db:0", "\"0\" is no port to connect to"),
            ("80:db:http", "from 1 to 65535"),
            ("65536:db:1", "from 0 to 65535"),
            ("+80:db:1", "\"+80\" is no port"),
            ("80::1", "\"\" is no host to connect to"),
            ("80:*:1", "\"*\" is no host to connect to"),
            ("80:me@db:1", "\"me@db\" is no host"),
            ("80:d b:1", "\"d b\" is no host"),
            ("80:-x:1", "\"-x\" is no host"),
            ("-x:80:db:1", "\"-x\" is no address to listen at"),
            ("/a:80:/b", "is no port to connect to"),
            ("/a:/b:80", "is no host to connect to"),
            ("80:/a:1", "is no host to connect to"),
            ("[db]:80:db:1", "brackets enclose an IPv6 address"),
            ("80:[::1:1", "brackets enclose an IPv6 address"),
            ("80:[::1]1:1", "brackets enclose an IPv6 address"),
            ("80:[::1%]:1", "brackets enclose an IPv6 address"),
            ("80:db:[::1]", "\"[::1]\" is no port to connect to"),
            ("80:/a\0", "zero byte"),
        ] {
            let error = fault(text);
            assert!(error.contains(words), "{text}: {error}");
        }
        let long = format!("80:/{}", "a".repeat(MAX_PATH_BYTES));
        assert!(fault(&long).contains("at most 107 bytes, and this one has 108"));
        assert!(ForwardSpec::parse(&long.as_bytes()[..long.len() - 1]).is_ok());
    }

    #[test]
    fn a_dynamic_port_has_an_address_or_none() {
        let parsed = |text: &str| ListenAt::parse_dynamic(text.as_bytes());
        assert_eq!(parsed("1080"), Ok(tcp(BindAddress::Loopback, 1080)));
        assert_eq!(parsed("0"), Ok(tcp(BindAddress::Loopback, 0)));
        assert_eq!(parsed("*:1080"), Ok(tcp(BindAddress::All, 1080)));
        assert_eq!(parsed(":1080"), Ok(tcp(BindAddress::All, 1080)));
        assert_eq!(parsed("[::1]:1080"), Ok(tcp(address("::1"), 1080)));
        for text in ["1080:db:80", "/a", "h:/a", "a:b:c"] {
            assert_eq!(parsed(text), Err(SpecError::DynamicForm), "{text}");
        }
        for text in ["", "x", "h:x", "1:[::1]"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    fn host() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z0-9_][a-z0-9._-]{0,20}",
            any::<IpAddr>().prop_map(|address| address.to_string()),
        ]
    }

    fn path() -> impl Strategy<Value = Vec<u8>> {
        "/[ -~é]{0,40}".prop_map(String::into_bytes)
    }

    fn listen_at() -> impl Strategy<Value = ListenAt> {
        let bind = prop_oneof![
            Just(BindAddress::Loopback),
            Just(BindAddress::All),
            any::<IpAddr>().prop_map(BindAddress::Address),
            "[a-z][a-k0-9-]{0,20}".prop_map(BindAddress::Name),
        ];
        prop_oneof![
            (bind, any::<u16>()).prop_map(|(bind, port)| ListenAt::Tcp { bind, port }),
            path().prop_map(ListenAt::Unix),
        ]
    }

    fn forward_target() -> impl Strategy<Value = ForwardTarget> {
        prop_oneof![
            (host(), 1..=u16::MAX).prop_map(|(host, port)| ForwardTarget::Tcp { host, port }),
            path().prop_map(ForwardTarget::Unix),
        ]
    }

    proptest! {
        #[test]
        fn every_spec_survives_its_text(listen in listen_at(), target in forward_target()) {
            let spec = ForwardSpec { listen: listen.clone(), target };
            let parsed = ForwardSpec::parse(spec.to_string().as_bytes());
            prop_assert_eq!(parsed.as_ref(), Ok(&spec), "{}", spec);
            if matches!(listen, ListenAt::Tcp { .. }) {
                prop_assert_eq!(ListenAt::parse_dynamic(listen.to_string().as_bytes()), Ok(listen));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(bytes: Vec<u8>, text in r"[]\[:/\\*%a0-9. ]{0,30}") {
            let _ = ListenAt::parse_dynamic(&bytes);
            for text in [&bytes[..], text.as_bytes()] {
                if let Ok(spec) = ForwardSpec::parse(text) {
                    let again = ForwardSpec::parse(spec.to_string().as_bytes());
                    if str::from_utf8(text).is_ok() {
                        prop_assert_eq!(again, Ok(spec));
                    }
                }
            }
        }
    }
}
