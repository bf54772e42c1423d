//! Forwards between this host and another end: an agent over ssh, a server, or the host that made a ticket.

use super::{args::RdforwardArgs, peer::ForwardPeer};
use crate::cli::shared::{exit::Exit, message::Console};

/// Forwards what the command line asks for, until the other end ends or a signal arrives. Returns how the program ends.
pub(super) fn run(args: &RdforwardArgs, peer: ForwardPeer, console: &Console) -> Exit {
    let _ = (args, peer);
    console.error("forwarding is not built yet");
    Exit::Local
}
