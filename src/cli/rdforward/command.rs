//! Runs a command whose connections to the other host go through the tunnel.

use std::ffi::OsString;

use super::{args::ForwardRunArgs, peer::ForwardPeer};
use crate::cli::shared::{exit::Exit, message::Console};

/// Runs the command, its program first, until it ends. Returns how the program ends.
pub(super) fn run(
    args: &ForwardRunArgs,
    peer: ForwardPeer,
    command: &[OsString],
    console: &Console,
) -> Exit {
    let _ = (args, peer, command);
    console.error("run is not built yet");
    Exit::Local
}
