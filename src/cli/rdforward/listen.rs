//! Waits for one peer with a ticket, and is the other end of its tunnel.

use super::{args::RdforwardArgs, peer};
use crate::{
    Direction,
    cli::shared::{
        exit::Exit,
        message::Console,
        ticket::{self, TicketOffer},
    },
    forward::{policy::ForwardPolicy, tunnel::TunnelRole},
    process::raise_descriptor_limit,
};

/// Prints a ticket, waits for the peer that has it, and connects to what the peer asks for. Returns when the peer has
/// ended.
pub(super) fn run(args: &RdforwardArgs, console: &Console) -> Exit {
    raise_descriptor_limit();
    let policy = args.policy();
    let offer = TicketOffer {
        hosts: args.peer.hosts.clone(),
        bind: None,
        config: args.peer.stream.config(Direction::Both),
        purpose: "connect",
        command: format!("rdforward -L {}", policy.example()),
    };
    let own = console.clone();
    ticket::serve_peer(offer, console, async move |stream, _, signal| {
        // --allow names what the other end may connect to, and nothing at which it may listen.
        let role = TunnelRole {
            may_listen: policy == ForwardPolicy::Any,
            policy: Some(policy),
            ..TunnelRole::default()
        };
        let cut = async {
            match signal.await {
                Some(_) => "rdforward --listen was interrupted",
                None => std::future::pending().await,
            }
        };
        let ended = peer::carry(stream, role, &own, cut).await;
        ended.map_err(anyhow::Error::msg)
    })
}
