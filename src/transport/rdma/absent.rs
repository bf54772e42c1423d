//! What stands in for the RDMA data path in a build without it: the reason why there is none.

use super::control::{codec::Control, terms::Agreement};
use crate::{DeviceFault, Error, HandshakeFault, StreamConfig, TransportPolicy};

/// No way over RDMA: there is none to have.
pub(crate) enum Ours {}

/// No queue pair.
pub(crate) enum Ends {}

/// Why there is no way over RDMA.
#[derive(Debug, Clone)]
pub(crate) struct NoWay {
    /// In words.
    pub(crate) reason: String,
    /// There is hardware for it all the same.
    pub(crate) hardware: bool,
}

impl Ours {
    /// Why there is no way over RDMA here.
    pub(crate) fn look(_config: &StreamConfig) -> Result<Self, NoWay> {
        let reason = "this rdpipe was built without RDMA".to_owned();
        Err(NoWay {
            reason,
            hardware: false,
        })
    }

    /// Finds out early what would only fail later.
    pub(crate) fn check(config: &StreamConfig) -> Result<(), Error> {
        match (config.transport, Self::look(config)) {
            (TransportPolicy::Rdma, Err(NoWay { reason, .. })) => Err(Error::Device {
                fault: DeviceFault::NotBuilt,
                reason,
            }),
            _ => Ok(()),
        }
    }

    /// What this end offers.
    pub(crate) fn offer(&self) -> Vec<u8> {
        match *self {}
    }

    /// The way that both should try.
    pub(crate) fn propose(&self, _theirs: &[u8]) -> Result<Vec<u8>, String> {
        match *self {}
    }

    /// A queue pair to the peer.
    #[allow(clippy::unused_async, reason = "the one that does something waits")]
    pub(crate) async fn establish(
        &self,
        _control: &mut Control,
        _proposal: &[u8],
        _dialer: bool,
        _agreement: &Agreement,
    ) -> Result<Result<Ends, String>, HandshakeFault> {
        match *self {}
    }
}
