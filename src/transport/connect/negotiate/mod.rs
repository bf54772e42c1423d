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
//! | `local_transports` | what this end can do over RDMA, and what its policy allows |
//!
//! The policy `auto` takes RDMA when both ends have it *and a message has crossed it*, otherwise TCP. The
//! policy `rdma` of either end rules out TCP.

mod acceptor;
mod dialer;
mod local_transports;

use tokio::{net::TcpStream, time::timeout};

pub(crate) use acceptor::accept;
pub(crate) use dialer::dial;
use futures::SinkExt;

use crate::{
    HandshakeFault, TransportPolicy,
    key::KeyId,
    transport::{
        control::{
            LINGER,
            codec::Control,
            message::{Message, WireTransportPolicy},
            task,
            terms::Agreement,
        },
        rdma,
    },
};

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
    theirs: WireTransportPolicy,
    reason: String,
) -> Result<String, HandshakeFault> {
    if ours == TransportPolicy::Rdma || theirs == WireTransportPolicy::Rdma {
        return Err(HandshakeFault::Transport(reason));
    }
    Ok(reason)
}
