//! Lets clients that have a key connect to ports of this host.

use super::args::ForwardServeArgs;
use crate::cli::shared::{exit::Exit, message::Console};

/// Serves clients until a signal ends the server. Returns how the program ends.
pub(super) fn run(args: &ForwardServeArgs, console: &Console) -> Exit {
    let _ = args.policy();
    console.error("serve is not built yet");
    Exit::Local
}
