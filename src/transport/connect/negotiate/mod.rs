//! From an authenticated control connection to the connection or queue pair that carries the data.
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {terms, ports}          ────────►   (the handshake ends with it)
//!                                 ◄────────   Welcome {terms, token, pairs of ports to try}
//!                      steps towards a queue pair (rdma/attempt.rs)
//!   or a second connection: preamble, token ►
//!                                 ◄────────   Ready
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

use tokio::net::TcpStream;

pub(crate) use acceptor::accept;
pub(crate) use dialer::dial;
use futures::SinkExt;

use crate::{
    HandshakeFault, TransportPolicy,
    transport::{
        control::{
            codec::Control,
            message::{Message, Policy},
            task,
            terms::Agreement,
        },
        rdma,
    },
};

/// A stream that both ends have agreed on, before its halves and tasks exist.
pub(crate) struct Negotiated {
    /// The authenticated control connection.
    pub(crate) control: Control,
    /// What will carry the data.
    pub(crate) data: DataCarrier,
    /// What was agreed.
    pub(crate) agreement: Agreement,
    /// Where the chains begin: this end's sending direction, then its receiving one.
    pub(crate) seeds: [u64; 2],
    /// The peer's name for messages.
    pub(crate) peer: String,
}

/// What carries the data of a stream.
pub(crate) enum DataCarrier {
    /// A queue pair that a message has crossed.
    Rdma(Box<rdma::Established>),
    /// A connection of its own.
    Tcp {
        /// That connection.
        socket: TcpStream,
        /// Why not RDMA.
        reason: String,
        /// There is hardware for it here, both ends were free to use it, and it is not used.
        is_fallback: bool,
    },
}

/// Tells an authenticated peer why this end gives up.
async fn abort_negotiation(mut control: Control, fault: &HandshakeFault) {
    let _ = control
        .send(Message::Abort {
            offset: 0,
            reason: fault.to_string(),
        })
        .await;
    task::close(control.into_inner()).await;
}

/// TCP instead of RDMA, for this reason, unless an end insists.
fn fall_back(
    ours: TransportPolicy,
    theirs: Policy,
    reason: String,
) -> Result<String, HandshakeFault> {
    if ours == TransportPolicy::Rdma || theirs == Policy::Rdma {
        return Err(HandshakeFault::Transport(reason));
    }
    Ok(reason)
}
