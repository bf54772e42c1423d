//! Connects to a peer that has several addresses.

use super::probes::Probes;
use crate::{Error, HandshakeFault, Key, Stream, StreamConfig, connect};

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
    /// The address.
    pub(crate) address: String,
    /// The error, as text for the user.
    pub(crate) what: String,
    /// True if a listener answered that has another key.
    pub(crate) keys_differ: bool,
}

/// Connects to the peer with `key`: probes all `addresses` at once, and tries the handshake with those that
/// answer, one after the other. The stream belongs to the runtime on which this function runs.
///
/// # Errors
///
/// Fails if no address leads to the peer, or if the peer refuses.
///
/// # Cancel safety
///
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
///
/// # Errors
///
/// Each address, and why the attempt failed.
///
/// # Cancel safety
///
/// Safe.
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
