//! Waits for one peer with a ticket, and is the other end of its tunnel.

use super::args::RdforwardArgs;
use crate::cli::shared::{exit::Exit, message::Console};

/// Prints a ticket, waits for the peer that has it, and connects to what the peer asks for. Returns when the peer has ended.
pub(super) fn run(args: &RdforwardArgs, console: &Console) -> Exit {
    let _ = args.policy();
    console.error("--listen is not built yet");
    Exit::Local
}
