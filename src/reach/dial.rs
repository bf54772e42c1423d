//! The dialling end.

use super::probes::Probes;
use crate::{Error, HandshakeFault, Key, Stream, StreamConfig, connect};

/// Why there is no stream.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// The peer was found, and said what it would say again.
    Final(Error),
    /// No address has the peer: what happened at each.
    Nowhere(Vec<FailedAddress>),
}

/// What happened at one address.
#[derive(Debug)]
pub(crate) struct FailedAddress {
    pub(crate) address: String,
    pub(crate) what: String,
    /// Whoever answered there has another key.
    pub(crate) keys_differ: bool,
}

/// Shakes hands with the addresses that answer, one after the other, until one is the peer. To be run where
/// the stream will be used.
///
/// # Errors
///
/// When none of them is, or the one that is does not come to terms.
///
/// # Cancel safety
///
/// Dropping the future closes what it had opened.
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
            Ok(()) => match connect(&address, port, key, config).await {
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

/// Whether another try, or another address, would end the same: the peer is the right one.
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
