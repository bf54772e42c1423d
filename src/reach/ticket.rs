//! Tickets: a program listens for one peer, and prints all that this peer needs in one word to copy and paste.
//!
//! A ticket is `rdt1`, then base32 in lower case, without padding, of
//!
//! | bytes | what |
//! |-------|------|
//! | 5 or 17, 1 to 8 times | an address, the best first: its length (4 or 16), then its bytes |
//! | 1 | 0: the end of the addresses |
//! | 2 | the port, big-endian |
//! | 32 | the key |
//! | 4 | a checksum of all bytes above: the first four bytes of their XXH3-64, big-endian |
//!
//! A ticket with one IPv4 address has 75 characters. Each ticket has exactly one text, in either case.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use data_encoding::BASE32_NOPAD;
use futures::FutureExt;
use rdpipe_digest::xxh3_64;
use zeroize::Zeroizing;

use crate::{Error, Key, Listener, Stream, StreamConfig, threads};

/// A listener for the one peer that has its ticket.
pub(crate) struct TicketListener {
    listener: Listener,
    ticket: Ticket,
}

/// Where a program listens for the peer with its ticket.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TicketPlace {
    /// The address to listen on; none is every address of this host.
    pub(crate) bind: Option<IpAddr>,
    /// The first and the last port that may be used; none is any free port.
    pub(crate) ports: Option<(u16, u16)>,
    /// The address in the ticket; none is all those at which this host may be reached.
    pub(crate) here: Option<IpAddr>,
}

impl TicketListener {
    /// Listens for a peer with `key`, which should be new.
    /// Fails as [`Listener::bind`] does.
    pub(crate) async fn bind(
        place: TicketPlace,
        key: &Key,
        config: &StreamConfig,
    ) -> Result<Self, Error> {
        let listener = super::listen(place.bind, place.ports, key, config).await?;
        let addresses = place.addresses();
        let ticket = Ticket::new(addresses, listener.local_addr().port(), key.clone());
        Ok(Self { listener, ticket })
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Waits for the peer that has the ticket, and listens no more: the ticket is used up. Peers that have connected
    /// with it meanwhile are told so.
    /// Fails as the listener does, and if the settings of a peer exclude this end's.
    /// Dropping the future ends the listener.
    pub(crate) async fn peer(self) -> Result<Stream, Error> {
        let stream = self.listener.accept_or_mismatch().await?;
        while let Some(arrival) = self.listener.accept_or_mismatch().now_or_never() {
            match arrival {
                Ok(mut other) => {
                    other.abort("the ticket is in use already");
                    threads::spawn(other.close());
                }
                // The listener's own tasks have ended, so no more peers arrive.
                Err(Error::Listen { .. }) => break,
                Err(_) => {}
            }
        }
        Ok(stream)
    }
}

impl TicketPlace {
    fn addresses(self) -> Vec<IpAddr> {
        if let Some(here) = self.here {
            return vec![here];
        }
        let mut addresses = super::addresses();
        match self.bind {
            Some(bound) if !bound.is_unspecified() => return vec![bound],
            // `--bind 0.0.0.0` accepts IPv4 only; `::` accepts IPv6 and IPv4.
            Some(IpAddr::V4(_)) => addresses.retain(IpAddr::is_ipv4),
            _ => {}
        }
        if addresses.is_empty() {
            // On a machine without a network, the ticket works on this machine only.
            addresses.push(Ipv4Addr::LOCALHOST.into());
            if self.bind == Some(Ipv6Addr::UNSPECIFIED.into()) {
                addresses.push(Ipv6Addr::LOCALHOST.into());
            }
        }
        addresses
    }
}

/// A ticket: the addresses, port and key of a listener.
#[derive(Clone)]
pub(crate) struct Ticket {
    /// The addresses at which the listener may be reached, the best first.
    pub(crate) addresses: Vec<IpAddr>,
    /// The port of the listener, which is never 0.
    pub(crate) port: u16,
    pub(crate) key: Key,
}

/// Shows neither the key nor the addresses.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// The reason why a text is not a ticket. No message repeats the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TicketError {
    /// The text does not look like a ticket.
    #[error("this is no ticket of rdcat, rdperf or rdforward --listen, which begins with rdt1")]
    NotATicket,
    /// The text looks like a ticket with a wrong or missing character.
    #[error("this looks like a ticket, but a character is wrong or missing")]
    Mistyped,
    /// The ticket has a format that this version does not know.
    #[error("this ticket was made by another version of rdpipe; install the same on both hosts")]
    Version,
}

/// No program listens at any address of a ticket.
#[derive(Debug, thiserror::Error)]
#[error(
    "no {program} waits at port {port} ({tried}); a ticket is good for one connection, so if it has been used, or that program has ended, begin with a new one"
)]
pub(crate) struct NoListener {
    /// The program that has made the ticket: "rdcat -l".
    pub(crate) program: &'static str,
    pub(crate) port: u16,
    /// Each address with the error of its attempt.
    pub(crate) tried: String,
}

impl Ticket {
    /// Makes a ticket for a listener. Takes the first [`MAX_ADDRESSES`] of `addresses`.
    pub(crate) fn new(addresses: impl IntoIterator<Item = IpAddr>, port: u16, key: Key) -> Self {
        Self {
            addresses: addresses.into_iter().take(MAX_ADDRESSES).collect(),
            port,
            key,
        }
    }

    /// Returns the text of the ticket, which [`parse`](Self::parse) accepts: letters and digits only.
    pub(crate) fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES));
        for address in &self.addresses {
            match address {
                IpAddr::V4(address) => {
                    bytes.push(V4_BYTES);
                    bytes.extend(address.octets());
                }
                IpAddr::V6(address) => {
                    bytes.push(V6_BYTES);
                    bytes.extend(address.octets());
                }
            }
        }
        bytes.push(0);
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(self.key.secret());
        let checksum = checksum(&bytes);
        bytes.extend(checksum);
        let mut encoded = Zeroizing::new(BASE32_NOPAD.encode(&bytes));
        encoded.make_ascii_lowercase();
        // The string is allocated at its full length: growing it would leave copies of the key behind.
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + encoded.len()));
        text.push_str(PREFIX);
        text.push_str(&encoded);
        text
    }

    /// Parses the text of a ticket, in either case, with or without white space around it.
    /// Fails if the text is not a valid ticket.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, TicketError> {
        let text = Zeroizing::new(text.trim_ascii().to_ascii_lowercase());
        let Some(rest) = text.strip_prefix(FAMILY.as_bytes()) else {
            // A ticket whose first characters are wrong.
            let looks_like_one = text.len() >= TELLING_CHARS && text.iter().copied().all(is_ours);
            return Err(if looks_like_one {
                TicketError::Mistyped
            } else {
                TicketError::NotATicket
            });
        };
        match rest.split_first() {
            Some((b'1', encoded)) => decode(encoded).ok_or(TicketError::Mistyped),
            Some((version, encoded))
                if version.is_ascii_digit() && encoded.len() >= TELLING_CHARS =>
            {
                Err(TicketError::Version)
            }
            _ => Err(TicketError::Mistyped),
        }
    }

    /// Returns true if a text is a ticket, or is similar to one and must be treated as a secret.
    pub(crate) fn resembles(text: &[u8]) -> bool {
        !matches!(Self::parse(text), Err(TicketError::NotATicket))
    }
}

/// The first characters of a ticket of any version.
const FAMILY: &str = "rdt";

/// The first characters of a ticket of this version.
const PREFIX: &str = "rdt1";

/// The most addresses in a ticket. With more, its text would be too long to copy by hand, and the addresses
/// beyond the first few of a host hardly ever work where those do not.
const MAX_ADDRESSES: usize = 8;

const V4_BYTES: u8 = 4;
const V6_BYTES: u8 = 16;
const KEY_BYTES: usize = 32;

/// The length of the checksum. One of 2^32 mistyped tickets passes as a valid one.
const CHECKSUM_BYTES: usize = 4;

/// The bytes besides the addresses: their end mark, the port, the key and the checksum.
const FIXED_BYTES: usize = 1 + 2 + KEY_BYTES + CHECKSUM_BYTES;
const MAX_BYTES: usize = MAX_ADDRESSES * (1 + V6_BYTES as usize) + FIXED_BYTES;

/// The length from which a word of letters and digits is taken for a damaged ticket: the shortest ticket without
/// its prefix and a few more characters.
const TELLING_CHARS: usize = ((5 + FIXED_BYTES) * 8).div_ceil(5) - 7;

fn is_ours(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Decodes the part after the prefix. Returns `None` if it is damaged.
fn decode(encoded: &[u8]) -> Option<Ticket> {
    if encoded.len() > (MAX_BYTES * 8).div_ceil(5) {
        return None;
    }
    let upper = Zeroizing::new(encoded.to_ascii_uppercase());
    let bytes = Zeroizing::new(BASE32_NOPAD.decode(&upper).ok()?);
    let (body, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
    if checksum(body) != *sum {
        return None;
    }
    let (addresses, rest) = addresses(body)?;
    let (port, key) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    let key = Key::from_secret(<&[u8; KEY_BYTES]>::try_from(key).ok()?);
    let is_useful = port != 0 && (1..=MAX_ADDRESSES).contains(&addresses.len());
    is_useful.then_some(Ticket {
        addresses,
        port,
        key,
    })
}

/// Splits a ticket's bytes into the addresses and the rest after their end mark.
fn addresses(mut rest: &[u8]) -> Option<(Vec<IpAddr>, &[u8])> {
    let mut addresses = Vec::new();
    loop {
        let (length, after) = rest.split_first()?;
        rest = match *length {
            0 => return Some((addresses, after)),
            V4_BYTES => {
                let (octets, after) = after.split_first_chunk::<4>()?;
                addresses.push(Ipv4Addr::from(*octets).into());
                after
            }
            V6_BYTES => {
                let (octets, after) = after.split_first_chunk::<16>()?;
                addresses.push(Ipv6Addr::from(*octets).into());
                after
            }
            _ => return None,
        };
    }
}

/// Returns the checksum, which reveals typing errors. It neither protects the key nor weakens it.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let [a, b, c, d, ..] = xxh3_64(bytes).to_be_bytes();
    [a, b, c, d]
}

/// The body of the fuzz target: the text of a parsed ticket is the text that was parsed.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    if let Ok(ticket) = Ticket::parse(data) {
        let text = ticket.text();
        assert!(text.as_bytes().eq_ignore_ascii_case(data.trim_ascii()));
    }
    // A fuzzer hardly ever finds a valid checksum, so the same bytes are also tried with one.
    let mut body = data.to_vec();
    body.extend(checksum(data));
    let encoded = BASE32_NOPAD.encode(&body).to_ascii_lowercase();
    if let Ok(ticket) = Ticket::parse(format!("{PREFIX}{encoded}").as_bytes()) {
        assert_eq!(ticket.text().as_str(), format!("{PREFIX}{encoded}"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket() -> Ticket {
        let addresses = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap());
        Ticket::new(addresses, 4711, Key::from_secret(&[7; KEY_BYTES]))
    }

    fn parsed(text: &str) -> Result<Ticket, TicketError> {
        Ticket::parse(text.as_bytes())
    }

    #[test]
    fn the_format_stays_as_it_is() {
        let text = ticket().text();
        let expected = "rdt1aqfaaaabcd6qaaaaaaaaaaaaaaaaaaaaaaaqaetha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dqobyha4dq5s4cze";
        assert_eq!(text.as_str(), expected);
        let parsed = parsed(expected).unwrap();
        assert_eq!(parsed.addresses, ticket().addresses);
        assert_eq!((parsed.port, parsed.key.secret()), (4711, &[7; KEY_BYTES]));
    }

    #[test]
    fn case_and_surrounding_space_do_not_matter() {
        let text = ticket().text();
        for text in [
            text.to_uppercase(),
            format!("  {}\r\n", *text),
            format!("\tRDT1{}", &text[4..]),
        ] {
            assert_eq!(parsed(&text).unwrap().text(), ticket().text());
        }
    }

    #[test]
    fn a_damaged_ticket_is_told_apart() {
        let text = ticket().text();
        for damaged in [
            &text[..text.len() - 1],
            &text[..20],
            "rdt1",
            &format!("{}a", *text),
            &text[1..],
            &text[4..],
            &text.replacen("rdt1", "rdtl", 1),
            &text.replacen("rdt1", "rdl1", 1),
            &format!("{} {}", &text[..30], &text[30..]),
        ] {
            let error = parsed(damaged).unwrap_err();
            assert_eq!(error, TicketError::Mistyped, "{damaged}");
        }
        let newer = text.replacen("rdt1", "rdt2", 1);
        assert_eq!(parsed(&newer).unwrap_err(), TicketError::Version);
    }

    #[test]
    fn other_texts_are_no_tickets() {
        let key = Key::generate().unwrap();
        for other in ["", " ", "h1", "/etc/motd", "h1:file", "-", &key.text()] {
            assert!(!Ticket::resembles(other.as_bytes()), "{other}");
        }
        assert!(Ticket::resembles(b" RDT1abc"));
    }

    #[test]
    fn what_leads_nowhere_is_no_ticket() {
        let key = || Key::from_secret(&[1; KEY_BYTES]);
        let nowhere = Ticket::new([], 1, key()).text();
        assert!(parsed(&nowhere).is_err());
        let portless = Ticket::new(ticket().addresses, 0, key()).text();
        assert!(parsed(&portless).is_err());
        let many = (0..20).map(|n| IpAddr::from([10, 0, 0, n]));
        let many = Ticket::new(many, 1, key());
        assert_eq!(parsed(&many.text()).unwrap().addresses.len(), MAX_ADDRESSES);
    }

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", ticket()), "Ticket(..)");
    }

    proptest! {
        #[test]
        fn every_ticket_survives_its_text(
            addresses in proptest::collection::vec(any::<IpAddr>(), 1..=MAX_ADDRESSES),
            port in 1..=u16::MAX,
            secret: [u8; KEY_BYTES],
        ) {
            let ticket = Ticket::new(addresses, port, Key::from_secret(&secret));
            let parsed = parsed(&ticket.text()).unwrap();
            prop_assert_eq!(&parsed.addresses, &ticket.addresses);
            prop_assert_eq!((parsed.port, parsed.key.secret()), (port, &secret));
        }

        #[test]
        fn one_changed_character_is_noticed(
            secret: [u8; KEY_BYTES],
            at in 0..75_usize,
            to in 0x21_u8..0x7f,
        ) {
            let ticket = Ticket::new([[10, 0, 0, 1].into()], 80, Key::from_secret(&secret));
            let mut text = ticket.text().as_bytes().to_vec();
            prop_assume!(!text[at].eq_ignore_ascii_case(&to));
            text[at] = to;
            prop_assert!(Ticket::parse(&text).is_err());
        }

        #[test]
        fn no_text_makes_the_parser_panic(bytes: Vec<u8>, tail in "[a-zA-Z2-7]*") {
            let _ = Ticket::parse(&bytes);
            let _ = parsed(&format!("rdt1{tail}"));
        }
    }
}
