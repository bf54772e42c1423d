//! The server's part of SOCKS5 (RFC 1928): what a client sends, and what it is answered. Pure, no I/O.
//!
//! | the client sends | this end answers |
//! |---|---|
//! | the version 5, the number of its methods, the methods | 5 and the method 0, no authentication |
//! | the version 5, the command, 0, an address, a port | 5, the result, 0, an address, a port |
//!
//! After the result 0 the connection carries the bytes of the client and of its target. The command is CONNECT, and the
//! address an IPv4 address, an IPv6 address or a name. A client may send the request, and the bytes behind it, before
//! it has read the first answer.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::policy::ForwardTarget;
use crate::printable::is_printable;

/// The answer to a greeting: the version, and the method 0, no authentication.
pub(crate) const NO_AUTHENTICATION: [u8; 2] = [VERSION, 0];

/// The most bytes of a request: four, a name of 255 bytes with its length, and the port. A greeting has at most 257.
#[cfg(any(test, fuzzing))]
const MAX_REQUEST_BYTES: usize = 4 + 1 + 255 + 2;

/// Parses the greeting at the beginning of `received`. Returns its length, or `None` if more bytes are needed. Answer
/// it with
/// [`NO_AUTHENTICATION`].
/// After an error, send [`SocksFault::answer`], and close the connection.
pub(crate) fn parse_greeting(received: &[u8]) -> Result<Option<usize>, SocksFault> {
    let Some((&version, rest)) = received.split_first() else {
        return Ok(None);
    };
    check_version(version)?;
    let Some((&count, methods)) = rest.split_first() else {
        return Ok(None);
    };
    let count = usize::from(count);
    match methods.get(..count) {
        None => Ok(None),
        Some(methods) if methods.contains(&0) => Ok(Some(2 + count)),
        Some(_) => Err(SocksFault::Authentication),
    }
}

/// Parses the request at the beginning of `received`, which follows the greeting. Returns the target and the length of
/// the request, or `None` if more bytes are needed. The bytes behind the request belong to the target.
/// After an error, send [`SocksFault::answer`], and close the connection.
pub(crate) fn parse_request(received: &[u8]) -> Result<Option<(ForwardTarget, usize)>, SocksFault> {
    if let Some(&version) = received.first() {
        check_version(version)?;
    }
    if let Some(&command) = received.get(1).filter(|&&command| command != CONNECT) {
        return Err(SocksFault::Command(command));
    }
    let Some(&kind) = received.get(3) else {
        return Ok(None);
    };
    let rest = &received[4..];
    let (host, address_bytes) = match kind {
        IPV4 => (
            rest.first_chunk::<4>()
                .map(|octets| Ipv4Addr::from(*octets).to_string()),
            4,
        ),
        IPV6 => (
            rest.first_chunk::<16>()
                .map(|octets| Ipv6Addr::from(*octets).to_string()),
            16,
        ),
        DOMAIN => match rest.split_first() {
            None => (None, 1),
            Some((0, _)) => return Err(SocksFault::Name),
            Some((&length, name)) => {
                let length = usize::from(length);
                (name.get(..length).map(name_of).transpose()?, 1 + length)
            }
        },
        kind => return Err(SocksFault::AddressType(kind)),
    };
    let port = rest
        .get(address_bytes..)
        .and_then(|rest| rest.first_chunk());
    let (Some(host), Some(port)) = (host, port) else {
        return Ok(None);
    };
    match u16::from_be_bytes(*port) {
        0 => Err(SocksFault::Port),
        port => Ok(Some((
            ForwardTarget::Tcp { host, port },
            4 + address_bytes + 2,
        ))),
    }
}

/// The result of a request, with the numbers of RFC 1928.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocksReply {
    /// The target is connected.
    Succeeded = 0,
    /// The connection failed for another reason than those below.
    Failed = 1,
    /// The other end does not allow the target.
    NotAllowed = 2,
    /// No route leads to the network of the target.
    NetworkUnreachable = 3,
    /// The host of the target does not answer, or its name is unknown.
    HostUnreachable = 4,
    /// The target refused the connection.
    Refused = 5,
    /// The command of the request is none that this end carries out.
    CommandNotSupported = 7,
    /// The kind of the address in the request is unknown.
    AddressTypeNotSupported = 8,
}

impl SocksReply {
    /// Returns the bytes of the answer. Its address is 0.0.0.0 port 0: the address of the other end's socket means
    /// nothing to a client.
    pub(crate) fn bytes(self) -> [u8; 10] {
        [VERSION, self as u8, 0, IPV4, 0, 0, 0, 0, 0, 0]
    }
}

/// The reason why the bytes of a client cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocksFault {
    /// The client speaks SOCKS4 or `SOCKS4a`.
    #[error(
        "the client speaks SOCKS4; set it to SOCKS5, as curl --socks5-hostname or socks5h:// does"
    )]
    Version4,
    /// The client speaks no version of SOCKS that is known.
    #[error(
        "the client speaks no SOCKS (its first byte is {0}); an HTTP proxy is something else: set the program to SOCKS5"
    )]
    Version(u8),
    /// The client insists on authentication.
    #[error(
        "the client insists on a user name and a password; this port asks for none: remove them"
    )]
    Authentication,
    /// The command is BIND, UDP ASSOCIATE or unknown.
    #[error(
        "the client asks for the command {0}; only CONNECT (1) is carried out, so no UDP and no incoming connections"
    )]
    Command(u8),
    /// The kind of the address is unknown.
    #[error(
        "the client sent an address of the unknown kind {0}; known are IPv4 (1), a name (3) and IPv6 (4)"
    )]
    AddressType(u8),
    /// The name is empty, or has characters that no name has.
    #[error("the client sent a name that is none; give it a host name or an address")]
    Name,
    /// The port is 0.
    #[error(
        "the client asked for port 0, to which nothing can be connected; give it a port from 1 to 65535"
    )]
    Port,
}

impl SocksFault {
    /// Returns the bytes to send before the connection is closed. A client that speaks no SOCKS5 gets none.
    pub(crate) fn answer(self) -> Vec<u8> {
        match self {
            Self::Version4 | Self::Version(_) => Vec::new(),
            Self::Authentication => vec![VERSION, 0xff],
            Self::Command(_) => SocksReply::CommandNotSupported.bytes().into(),
            Self::AddressType(_) => SocksReply::AddressTypeNotSupported.bytes().into(),
            Self::Name | Self::Port => SocksReply::Failed.bytes().into(),
        }
    }
}

const VERSION: u8 = 5;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const DOMAIN: u8 = 3;
const IPV6: u8 = 4;

fn check_version(version: u8) -> Result<(), SocksFault> {
    match version {
        VERSION => Ok(()),
        4 => Err(SocksFault::Version4),
        other => Err(SocksFault::Version(other)),
    }
}

/// Returns a name that a resolver and a terminal can be given. An address as a name, which some clients send, stays as
/// it is.
fn name_of(bytes: &[u8]) -> Result<String, SocksFault> {
    let name = std::str::from_utf8(bytes).map_err(|_| SocksFault::Name)?;
    let strange = |c: char| c.is_whitespace() || !is_printable(c);
    if name.contains(strange) {
        return Err(SocksFault::Name);
    }
    Ok(name.to_owned())
}

/// The body of the fuzz target: the parts of a request are parsed as the whole is, and no more is taken than was
/// needed.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let greeting = parse_greeting(data);
    prefixes_agree(data, &greeting, |whole| *whole, parse_greeting);
    let request = parse_request(data);
    prefixes_agree(data, &request, |whole| whole.1, parse_request);
    if let Ok(Some((target, _))) = request {
        let shown = target.to_string();
        assert!(!shown.contains(char::is_control) && !shown.is_empty());
    }
}

/// Checks that a parser asks for more bytes until it has what it takes, and that a fault stays one when more bytes
/// arrive.
#[cfg(any(fuzzing, test))]
fn prefixes_agree<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    whole: &Result<Option<T>, SocksFault>,
    taken: impl Fn(&T) -> usize,
    parse: impl Fn(&[u8]) -> Result<Option<T>, SocksFault>,
) {
    let needed = match whole {
        Ok(Some(parsed)) => taken(parsed),
        _ => data.len(),
    };
    assert!(
        needed <= data.len().min(MAX_REQUEST_BYTES)
            || whole.as_ref().is_ok_and(Option::is_none)
            || whole.is_err()
    );
    for end in 0..data.len() {
        let part = parse(&data[..end]);
        match &part {
            Ok(None) => assert!(end < needed || whole.as_ref().is_ok_and(Option::is_none)),
            Ok(Some(_)) | Err(_) => assert_eq!(&part, whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(host: &str, port: u16) -> ForwardTarget {
        let host = host.to_owned();
        ForwardTarget::Tcp { host, port }
    }

    fn named(name: &[u8], port: u16) -> Vec<u8> {
        let length = u8::try_from(name.len()).unwrap();
        [&[5, 1, 0, 3, length], name, &port.to_be_bytes()].concat()
    }

    #[test]
    fn a_greeting_without_authentication_is_accepted() {
        assert_eq!(parse_greeting(&[5, 1, 0]), Ok(Some(3)));
        assert_eq!(parse_greeting(&[5, 3, 0, 1, 2, 5, 1]), Ok(Some(5)));
        assert_eq!(parse_greeting(&[5, 2, 2, 0]), Ok(Some(4)));
        assert_eq!(NO_AUTHENTICATION, [5, 0]);
        for part in [&[][..], &[5], &[5, 2], &[5, 2, 0]] {
            assert_eq!(parse_greeting(part), Ok(None), "{part:?}");
        }
        for insists in [&[5, 0][..], &[5, 2, 1, 2]] {
            let fault = parse_greeting(insists).unwrap_err();
            assert_eq!(fault, SocksFault::Authentication);
            assert_eq!(fault.answer(), [5, 0xff]);
        }
    }

    #[test]
    fn what_is_no_socks5_gets_no_answer() {
        for (bytes, words) in [
            (&b"\x04\x01\0\x50\x7f\0\0\x01\0"[..], "SOCKS4"),
            (b"\x04", "SOCKS4"),
            (b"GET / HTTP/1.1\r\n", "its first byte is 71"),
            (b"\0", "its first byte is 0"),
        ] {
            let fault = parse_greeting(bytes).unwrap_err();
            assert!(fault.to_string().contains(words), "{fault}");
            assert_eq!(fault.answer(), b"");
        }
    }

    #[test]
    fn a_request_has_an_address_or_a_name() {
        let v4 = [5, 1, 0, 1, 10, 0, 0, 7, 0x15, 0x38];
        assert_eq!(parse_request(&v4), Ok(Some((target("10.0.0.7", 5432), 10))));
        let v6 = [&[5, 1, 0, 4][..], &[0; 15], &[1, 0, 80], b"GET"].concat();
        assert_eq!(parse_request(&v6), Ok(Some((target("::1", 80), 22))));
        let name = named(b"db.example", 5432);
        assert_eq!(
            parse_request(&name),
            Ok(Some((target("db.example", 5432), 17)))
        );
        let long = named(&[b'a'; 255], 1);
        assert_eq!(parse_request(&long).unwrap().unwrap().1, MAX_REQUEST_BYTES);
    }

    #[test]
    fn a_request_that_cannot_be_served_is_answered_with_the_reason() {
        for (request, fault, result) in [
            (vec![5, 2], SocksFault::Command(2), 7),
            (
                vec![5, 3, 0, 1, 0, 0, 0, 0, 0, 0],
                SocksFault::Command(3),
                7,
            ),
            (vec![5, 1, 0, 2], SocksFault::AddressType(2), 8),
            (named(b"", 1), SocksFault::Name, 1),
            (named(b"a b", 1), SocksFault::Name, 1),
            (named(b"a\x1b[2J", 1), SocksFault::Name, 1),
            (named(b"\xff", 1), SocksFault::Name, 1),
            (named(b"db", 0), SocksFault::Port, 1),
        ] {
            assert_eq!(parse_request(&request), Err(fault), "{request:?}");
            assert_eq!(fault.answer(), [5, result, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(parse_request(&[4]), Err(SocksFault::Version4));
    }

    #[test]
    fn the_answers_have_the_numbers_of_the_standard() {
        for (reply, number) in [
            (SocksReply::Succeeded, 0),
            (SocksReply::Failed, 1),
            (SocksReply::NotAllowed, 2),
            (SocksReply::NetworkUnreachable, 3),
            (SocksReply::HostUnreachable, 4),
            (SocksReply::Refused, 5),
        ] {
            assert_eq!(reply.bytes(), [5, number, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
    }

    proptest! {
        #[test]
        fn parts_are_parsed_as_the_whole_is(
            name in "[a-z.]{0,20}",
            port: u16,
            behind: Vec<u8>,
            any in proptest::collection::vec(prop_oneof![0..6_u8, any::<u8>()], 0..40),
        ) {
            for bytes in [[named(name.as_bytes(), port), behind].concat(), any] {
                prefixes_agree(&bytes, &parse_greeting(&bytes), |taken| *taken, parse_greeting);
                prefixes_agree(&bytes, &parse_request(&bytes), |parsed| parsed.1, parse_request);
            }
        }
    }
}
