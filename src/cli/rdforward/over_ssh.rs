//! Forwards between this host and another end: an agent over ssh, a server, or the host that made a ticket.

use anyhow::Context;
use futures::FutureExt;

use super::{args::RdforwardArgs, near::NearSide, peer::ForwardPeer};
use crate::cli::shared::{
    exit::Exit,
    message::{Console, sentence},
    signals,
};

/// Forwards what the command line asks for, until the other end ends or a signal arrives. Returns how the program ends.
pub(super) fn run(args: &RdforwardArgs, peer: ForwardPeer, console: &Console) -> Exit {
    forward(args, peer, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::Local
    })
}

fn forward(args: &RdforwardArgs, peer: ForwardPeer, console: &Console) -> anyhow::Result<Exit> {
    let side = NearSide::start(&args.peer, console)?;
    let signal = signals::watch(&side.control, console).context("cannot catch signals")?;
    // Before the other end is reached: a port that is taken is known at once.
    let tunnel = side.tunnel(&args.forwards)?;
    let _ending = tunnel.end_guard();
    let handle = tunnel.handle();
    // A second signal ends the process at once.
    let signal = signals::shared(signal).inspect(move |_| handle.remove_paths());
    let running = side.connect(tunnel, peer, signal.boxed().shared(), true, |_| ())?;
    let ending = futures::executor::block_on(running);
    ending.print(console);
    Ok(ending.exit)
}
