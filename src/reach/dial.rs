//! Connects to a peer that has several addresses: opens TCP connections to all of them at once, and takes one that
//! answers.

use std::{io, time::Duration};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{net::TcpStream, time::timeout};

use crate::{Error, HandshakeFault, Key, Stream, StreamConfig, connect, threads};

/// The reason why no address led to the peer.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// The peer was found and refused; another attempt would end the same way.
    Final(Error),
    /// The peer is at none of the addresses; one entry for each address, in the order of the attempts.
    Nowhere(Vec<FailedAddress>),
}

/// An address that was tried without success.
#[derive(Debug)]
pub(crate) struct FailedAddress {
    pub(crate) address: String,
    /// The error, as text for the user.
    pub(crate) what: String,
    /// True if a listener answered that has another key.
    pub(crate) keys_differ: bool,
}

/// Connects to the peer with `key`: probes all `addresses` at once, and tries the handshake with those that
/// answer, one after the other. The stream belongs to the runtime on which this function runs.
/// Fails if no address leads to the peer, or if the peer refuses.
/// A dropped future closes the connections that it opened.
pub(crate) async fn dial(
    addresses: &[String],
    port: u16,
    key: &Key,
    config: &StreamConfig,
) -> Result<Stream, Unreached> {
    let mut probes = Probes::start(addresses, port);
    let mut tried = Vec::new();
    while let Some((address, answer)) = probes.next().await {
        let mut keys_differ = false;
        let what = match answer {
            Err(error) => error.to_string(),
            Ok(()) => match connect((address.as_str(), port), key, config).await {
                Ok(stream) => return Ok(stream),
                Err(error) if is_final(&error) => return Err(Unreached::Final(error)),
                Err(Error::Handshake { fault, .. }) => {
                    keys_differ = matches!(fault, HandshakeFault::Key);
                    fault.to_string()
                }
                Err(Error::Connect { source, .. } | Error::Resolve { source, .. }) => {
                    source.to_string()
                }
                Err(error) => error.to_string(),
            },
        };
        tried.push(FailedAddress {
            address,
            what,
            keys_differ,
        });
    }
    Err(Unreached::Nowhere(tried))
}

/// Returns the best of `addresses` at which something listens on `port`.
/// The error names each address, and why the attempt failed.
/// Cancel safe.
pub(crate) async fn first_answering(addresses: &[String], port: u16) -> Result<String, String> {
    let mut probes = Probes::start(addresses, port);
    let mut tried = Vec::new();
    while let Some((address, answer)) = probes.next().await {
        match answer {
            Ok(()) => return Ok(address),
            Err(error) => tried.push(format!("{address}: {error}")),
        }
    }
    Err(tried.join(", "))
}

/// Returns true if the peer itself was reached, so that another attempt or another address would fail the same
/// way.
pub(crate) fn is_final(error: &Error) -> bool {
    match error {
        Error::Handshake { fault, .. } => matches!(
            fault,
            HandshakeFault::Version { .. }
                | HandshakeFault::Direction(_)
                | HandshakeFault::Transport(_)
                | HandshakeFault::Refused(_)
        ),
        Error::Connect { .. } | Error::Resolve { .. } => false,
        _ => true,
    }
}

/// The time limit for an answer from one address. TCP repeats a lost SYN after one second. An edge between hosts that
/// drop the packets of each other goes through ssh after twice this time.
const PROBE_LIMIT: Duration = Duration::from_millis(1500);

/// The time that an address that answered waits for a better one to answer. Hosts of a LAN answer sooner.
const BETTER_LIMIT: Duration = Duration::from_millis(20);

type Answer = (usize, io::Result<()>);

/// The probes of all addresses of a peer. The addresses are ordered: a lower index is a better address.
pub(super) struct Probes<'a> {
    addresses: &'a [String],
    running: FuturesUnordered<futures::future::BoxFuture<'a, Answer>>,
    /// The indices of the addresses that answered and have not been returned.
    answered: Vec<usize>,
}

impl<'a> Probes<'a> {
    /// Starts to connect to `port` at all `addresses`.
    pub(super) fn start(addresses: &'a [String], port: u16) -> Self {
        let probe = |(rank, address): (usize, &'a String)| {
            async move {
                let connecting = async {
                    let addresses = threads::lookup_host(address, port).await?;
                    TcpStream::connect(&*addresses).await
                };
                let answer = timeout(PROBE_LIMIT, connecting).await;
                let answer = answer.unwrap_or_else(|_| Err(no_answer()));
                (rank, answer.map(drop))
            }
            .boxed()
        };
        Self {
            addresses,
            running: addresses.iter().enumerate().map(probe).collect(),
            answered: Vec::new(),
        }
    }

    /// Returns the next address and the result of its probe, or `None` after the last one.
    ///
    /// A failed probe is returned at once. An address that answered is returned when every better one has been
    /// returned, or [`BETTER_LIMIT`] has passed without an answer from another one.
    pub(super) async fn next(&mut self) -> Option<(String, io::Result<()>)> {
        loop {
            let best = self.answered.iter().copied().min();
            let answer = match best {
                // No address is better than the first.
                Some(0) => None,
                Some(_) => timeout(BETTER_LIMIT, self.running.next())
                    .await
                    .unwrap_or(None),
                None => Some(self.running.next().await?),
            };
            match (answer, best) {
                (Some((rank, Ok(()))), _) => self.answered.push(rank),
                (Some((rank, Err(error))), _) => {
                    return Some((self.addresses[rank].clone(), Err(error)));
                }
                (None, Some(best)) => {
                    self.answered.retain(|rank| *rank != best);
                    return Some((self.addresses[best].clone(), Ok(())));
                }
                (None, None) => return None,
            }
        }
    }
}

fn no_answer() -> io::Error {
    let text = format!("no answer within {PROBE_LIMIT:?}");
    io::Error::new(io::ErrorKind::TimedOut, text)
}
