//! From an authenticated control connection to the connection or queue pair that carries the data.
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {terms, ports}          ────────►   (the handshake ends with it)
//!                                 ◄────────   Welcome {terms, token, pairs of ports to try}
//!                      steps towards a queue pair (rdma/establish/attempt.rs)
//!   or a second connection:
//!     preamble, label             ────────►
//!                                 ◄────────   challenge
//!     proof                       ────────►
//!                                 ◄────────   Ready, on the first connection
//! ```
//!
//! | file | what it has |
//! |---|---|
//! | `dialer`, `acceptor` | the two sides |
//!
//! The policy `auto` takes RDMA when both ends have it *and a message has crossed it*, otherwise TCP. The
//! policy `rdma` of either end rules out TCP.

mod acceptor;
mod dialer;

use futures::SinkExt;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    HandshakeFault, StreamConfig, TransportPolicy,
    key::KeyId,
    transport::{
        control::{
            LINGER,
            connection::Control,
            message::{Hello, Message},
            noise::Role,
            task,
            terms::Agreement,
        },
        rdma,
    },
};

pub(crate) use acceptor::accept;
pub(crate) use dialer::dial;

/// A negotiated stream, before its halves and tasks exist.
pub(crate) struct Negotiated {
    /// The authenticated control connection.
    pub(crate) control: Control,
    /// What will carry the data.
    pub(crate) data: DataCarrier,
    /// What both ends agreed on.
    pub(crate) agreement: Agreement,
    /// The seeds of the digests, this end's sending direction first.
    pub(crate) seeds: [u64; 2],
    /// The id of the key that both ends have.
    pub(crate) key_id: KeyId,
    /// The name of the peer, for messages to the user.
    pub(crate) peer: String,
}

/// What carries the data of a stream.
pub(crate) enum DataCarrier {
    /// A queue pair that a frame has crossed.
    Rdma(Box<rdma::Established>),
    /// A second TCP connection.
    Tcp {
        /// The connection.
        socket: TcpStream,
        /// The reason why it is not RDMA.
        reason: String,
        /// True if this host has RDMA hardware, and its policy allows both transports.
        is_fallback: bool,
    },
}

/// Sends the reason why this end aborts to an authenticated peer, and closes the connection. A peer that does not read
/// delays this for some seconds only.
async fn abort_negotiation(mut control: Control, fault: &HandshakeFault) {
    let reason = fault.to_string();
    let abort = Message::Abort { offset: 0, reason };
    let _ = timeout(LINGER, control.send(abort)).await;
    task::close(control.into_inner()).await;
}

/// Falls back to TCP for this reason, unless the policy of an end requires RDMA.
fn fall_back(
    ours: TransportPolicy,
    theirs: TransportPolicy,
    reason: String,
) -> Result<String, HandshakeFault> {
    if ours == TransportPolicy::Rdma || theirs == TransportPolicy::Rdma {
        return Err(HandshakeFault::Transport(reason));
    }
    Ok(reason)
}

/// The transports of this end.
struct LocalTransports {
    policy: TransportPolicy,
    rdma: Result<rdma::LocalPorts, rdma::Unavailable>,
}

impl LocalTransports {
    fn detect(config: &StreamConfig) -> Self {
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

    fn offer(&self) -> Result<Vec<u8>, String> {
        let reason = |absent: &rdma::Unavailable| absent.reason.clone();
        self.rdma
            .as_ref()
            .map(rdma::LocalPorts::offer)
            .map_err(reason)
    }

    /// Proposes pairs of ports, as the acceptor. The error says why there are none, and at which host.
    fn propose(&self, host: &str, theirs: &Hello) -> Result<Vec<u8>, String> {
        match (&self.rdma, &theirs.rdma) {
            (Ok(ours), Ok(offer)) => ours
                .propose(offer)
                .map_err(|reason| format!("{host}: {reason}")),
            (Err(none), _) => Err(format!("{host}: {}", none.reason)),
            (_, Err(reason)) => Err(format!("{}: {reason}", theirs.terms.host)),
        }
    }

    /// Makes a queue pair over one of the proposed pairs. The inner error says why there is none.
    async fn establish(
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

    fn tcp(&self, socket: TcpStream, reason: String) -> DataCarrier {
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
