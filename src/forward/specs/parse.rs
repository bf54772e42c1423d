//! Parses the values of `-L`, `-R` and `-D`.

use std::{
    net::{IpAddr, Ipv6Addr},
    str,
};

use super::{BindAddress, ForwardSpec, ListenAt};
use crate::forward::target::ForwardTarget;

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
    /// Parses the value of `-L` or `-R`. A part with a `/` is the path of a UNIX socket. In a path, `\:` is a colon and `\\` a
    /// backslash, as in ssh.
    ///
    /// # Errors
    ///
    /// What is wrong, and the right form.
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
    ///
    /// # Errors
    ///
    /// What is wrong, and the right form.
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

/// Returns true if the first two parts of a value that begins with no path are an address and a port: `BIND:PORT:HOST:PORT` and
/// `BIND:PORT:/PATH`. With too few parts the message is about the rest, so an address that is clearly one counts too.
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

/// Returns true if a text may be the name of a host: no resolver takes other characters, and a terminal shows these as they are.
pub(crate) fn is_name(text: &str) -> bool {
    let strange = |c: char| c.is_whitespace() || c.is_control() || "[]*/\\@\u{fffd}".contains(c);
    !text.is_empty() && !text.starts_with('-') && !text.contains(strange)
}
