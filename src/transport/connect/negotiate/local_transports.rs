//! The transports of this end: its RDMA ports, and the policy that says what it may use.

use tokio::net::TcpStream;

use super::DataCarrier;
use crate::{
    HandshakeFault, StreamConfig, TransportPolicy,
    transport::{
        control::{codec::Control, message::Hello, role::Role, terms::Agreement},
        rdma,
    },
};

/// The transports of this end.
pub(super) struct LocalTransports {
    policy: TransportPolicy,
    rdma: Result<rdma::LocalPorts, rdma::Unavailable>,
}

impl LocalTransports {
    pub(super) fn detect(config: &StreamConfig) -> Self {
        let policy = config.transport;
        let rdma = if policy == TransportPolicy::Tcp {
            let reason = "TCP was asked for".to_owned();
            let hardware = false;
            Err(rdma::Unavailable { reason, hardware })
        } else {
            rdma::LocalPorts::discover(config)
        };
        Self { policy, rdma }
    }

    pub(super) fn offer(&self) -> Result<Vec<u8>, String> {
        let reason = |absent: &rdma::Unavailable| absent.reason.clone();
        self.rdma
            .as_ref()
            .map(rdma::LocalPorts::offer)
            .map_err(reason)
    }

    /// Proposes pairs of ports, as the acceptor. The error says why there are none, and at which host.
    pub(super) fn propose(&self, host: &str, theirs: &Hello) -> Result<Vec<u8>, String> {
        match (&self.rdma, &theirs.rdma) {
            (Ok(ours), Ok(offer)) => ours
                .propose(offer)
                .map_err(|reason| format!("{host}: {reason}")),
            (Err(none), _) => Err(format!("{host}: {}", none.reason)),
            (_, Err(reason)) => Err(format!("{}: {reason}", theirs.terms.host)),
        }
    }

    /// Makes a queue pair over one of the proposed pairs. The inner error says why there is none.
    pub(super) async fn establish(
        &self,
        control: &mut Control,
        proposal: Result<Vec<u8>, String>,
        role: Role,
        agreement: &Agreement,
    ) -> Result<Result<rdma::Established, String>, HandshakeFault> {
        match (&self.rdma, proposal) {
            (_, Err(reason)) => Ok(Err(reason)),
            (Ok(ours), Ok(proposal)) => {
                // Boxed: the steps are rare, and would make every connection's future large.
                Box::pin(ours.establish(control, &proposal, role, agreement)).await
            }
            (Err(_), Ok(_)) => Err(HandshakeFault::Protocol(
                "a proposal of RDMA ports, although none were offered",
            )),
        }
    }

    pub(super) fn tcp(&self, socket: TcpStream, reason: String) -> DataCarrier {
        let hardware = match &self.rdma {
            Ok(_) => true,
            Err(none) => none.hardware,
        };
        let is_fallback = hardware && self.policy == TransportPolicy::Auto;
        DataCarrier::Tcp {
            socket,
            reason,
            is_fallback,
        }
    }
}
