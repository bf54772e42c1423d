//! The entry points of the fuzz target for RDMA: the ports and steps of a peer that has the key. Compiled only for
//! fuzzing. No device is opened: there is none of the name that is used here.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    Rdma,
    establish::{LocalPorts, PlannedRail},
    link_setup::{LinkOffer, decode, encode},
    ports::{
        device::{Device, GidEntry, Inventory, Port},
        network::{Gid, GidKind, LinkLayer},
        proposal::{PortPair, Proposal},
    },
    renewal::{RenewalShared, Renewer},
};
use crate::{
    MIN_CHUNK_BYTES, StreamConfig,
    transport::{
        control::{
            message::{Agreement, Message, agree, local_terms},
            noise::Role,
            seal::StreamSeal,
        },
        data::steward::Shared,
        fuzzing::FuzzScript,
    },
};

/// The most pairs of ports of a proposal.
const MOST_PAIRS: usize = 3;

/// The most messages that one renewal sends before it waits for the peer.
const MOST_STEPS: usize = 4;

/// The one rail of a stream.
const ONE_RAIL: PlannedRail = PlannedRail {
    number: 0,
    rails: 1,
};

/// Answers any ports that a dialer offers. Every pair that is proposed has a port of each end, and a size that both
/// allow.
pub(crate) fn offer(data: &[u8]) {
    let Some((ports, _)) = ports() else { return };
    let Ok((proposal, _)) = ports.propose(data, 4) else {
        return;
    };
    let proposal: Proposal = decode(&proposal).expect("this end encoded it");
    assert!((1..=MOST_PAIRS).contains(&proposal.pairs.len()));
    for pair in &proposal.pairs {
        assert!(usize::from(pair.acceptor) < ADDRESSES);
        assert!(pair.chunk_bytes as usize <= CHUNK && pair.mtu <= 4096);
    }
}

/// Plans a link over each pair that a peer proposes, as dialer and as acceptor. A plan never has larger chunks or
/// deeper pools than this end allows.
pub(crate) fn proposal(data: &[u8]) {
    let Ok(proposal) = decode::<Proposal>(data) else {
        return;
    };
    assert!((1..=MOST_PAIRS).contains(&proposal.pairs.len()));
    let is_clean = |text: &String| !text.contains(char::is_control);
    assert!(proposal.doubt.iter().all(is_clean));
    let Some((ports, agreement)) = ports() else {
        return;
    };
    for pair in &proposal.pairs {
        for role in [Role::Dialer, Role::Acceptor] {
            if let Ok(plan) = ports.plan(&[pair], ONE_RAIL, role, &agreement, &seal(role)) {
                assert!((MIN_CHUNK_BYTES..=CHUNK).contains(&plan.pool.chunk_bytes));
                assert!(plan.pool.depth as usize <= DEPTH);
            }
        }
    }
}

/// Decodes a peer's part of a link. It never has more slots than bytes.
pub(crate) fn part(data: &[u8]) {
    if let Ok(part) = decode::<LinkOffer>(data) {
        let again = encode(&part);
        assert!(again.len() <= 4 * data.len() + 64);
        let same: LinkOffer = decode(&again).expect("what was decoded can be encoded");
        assert_eq!(encode(&same), again);
    }
}

/// Sends the steps of a peer to the renewal of a stream. Panics if the renewal sends more than its own steps, or if
/// steps of the peer pile up.
pub(crate) fn renewal(shared: &Arc<Shared<Rdma>>, script: &mut FuzzScript<'_>) {
    let Some((ports, agreement)) = ports() else {
        return;
    };
    let pair = PortPair {
        dialer: 0,
        acceptor: 0,
        mtu: 1024,
        chunk_bytes: 1 << 16,
        dialer_psn: 1,
        acceptor_psn: 2,
    };
    let plan = ports
        .plan(
            &[&pair],
            ONE_RAIL,
            Role::Dialer,
            &agreement,
            &seal(Role::Dialer),
        )
        .expect("it was offered");
    let state = &shared.state;
    let renewal = Arc::new(RenewalShared::new(state.clone(), 2));
    let renewer = Renewer::new(
        Arc::clone(shared),
        Arc::clone(&renewal),
        plan,
        Duration::ZERO,
    );
    let mut serving = pin!(renewer.serve());
    let mut cx = Context::from_waker(Waker::noop());
    while let Some(kind) = script.byte() {
        match kind % 4 {
            0 => renewal.request(None),
            1 => renewal.request(Some(std::io::ErrorKind::TimedOut.into())),
            2 => state.receive(Message::Step {
                rail: 0,
                step: Err("no memory".to_owned()),
            }),
            _ => state.receive(Message::Step {
                rail: 0,
                step: Ok(script.piece().to_vec()),
            }),
        }
        let is_over = serving.as_mut().poll(&mut cx) == Poll::Ready(());
        let sent = state.outgoing().messages;
        assert!(sent.len() <= MOST_STEPS, "{} messages", sent.len());
        assert!(!is_over || state.failed());
        if is_over {
            break;
        }
    }
    let waiting = std::iter::from_fn(|| state.take_step()).count();
    assert!(waiting <= 8, "{waiting} steps wait");
}

fn seal(role: Role) -> StreamSeal {
    StreamSeal::of_seed(1, role, None)
}

const CHUNK: usize = 64 << 10;
const DEPTH: usize = 4;

/// The number of addresses of [`inventory`].
const ADDRESSES: usize = 3;

/// Returns the ports of a host with [`inventory`], and the terms of two equal ends; none if this process may not pin
/// even a small pool.
fn ports() -> Option<(LocalPorts, Agreement)> {
    let mut config = StreamConfig::default();
    (config.rdma.chunk_bytes, config.rdma.depth) = (CHUNK, DEPTH);
    let ports = LocalPorts::among(&inventory(), &config).ok()?;
    let terms = local_terms(&config, true);
    let agreement = agree(&terms, &terms).expect("they are the same");
    Some((ports, agreement))
}

/// Returns a device that does not exist: a port of RoCE with an address of each family, and one of InfiniBand.
fn inventory() -> Inventory {
    let entry = |index, gid: &str, kind| GidEntry {
        index,
        gid: Gid::parse(gid).expect("an address"),
        kind,
        netdev: None,
        prefix: Some(24),
        mtu: 4096,
    };
    let port = |number, link_layer, gids| Port {
        number,
        state: "ACTIVE".to_owned(),
        phys_state: "LinkUp".to_owned(),
        link_layer: Some(link_layer),
        rate_mbps: 100_000,
        lid: 1,
        pkeys: 1,
        gids,
    };
    let v4 = entry(1, "::ffff:10.1.0.1", GidKind::RoceV2);
    let v6 = entry(2, "fd00::1", GidKind::RoceV2);
    let infiniband = entry(0, "fe80::2", GidKind::InfiniBand);
    Inventory {
        devices: vec![Device {
            name: "no such device".to_owned(),
            software: false,
            fault: None,
            ports: vec![
                port(1, LinkLayer::Ethernet, vec![v4, v6]),
                port(2, LinkLayer::InfiniBand, vec![infiniband]),
            ],
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::connect::share_without_halves;

    /// A stream that sends nothing and receives nothing.
    #[tokio::test]
    async fn a_step_about_pools_that_was_not_due_fails_the_stream() {
        let steps: [(&[u8], _); 2] = [
            (&[3, 1, 3], "the receive pool of an end that only sends"),
            (&[3, 2, 4, 0], "slots that this end did not ask for"),
        ];
        for (script, rule) in steps {
            let shared = share_without_halves();
            renewal(&shared, &mut FuzzScript::new(script));
            let error = shared.state.receive_error();
            let text = error.expect("the peer broke a rule").to_string();
            assert!(text.contains(rule), "{text}");
        }
    }
}
