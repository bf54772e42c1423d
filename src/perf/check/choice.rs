//! What `auto` chooses for two hosts, and why. Pure, no I/O.

use super::pair_facts::{PairEnd, PairFacts};

/// Returns true if a stream between the two hosts uses RDMA when the user does not choose, and the reason: the ports, or why
/// it is TCP. A host that has measured nothing over its ports is expected to use them.
pub(crate) fn automatic_choice(pair: &PairFacts<'_>) -> (bool, String) {
    for end in [pair.dialer, pair.listener] {
        if let Some(reason) = no_rdma(end) {
            return (false, format!("{}: {reason}", end.name));
        }
    }
    let proofs = match pair.proofs {
        Some(Ok(proofs)) => proofs,
        Some(Err(fault)) => return (false, fault.text.clone()),
        None => {
            let text = "both hosts have RDMA, and no message over it was tried";
            return (true, text.to_owned());
        }
    };
    // The message with which a stream proves its ports is a short one.
    if let Some(proof) = proofs.iter().find(|proof| proof.short.is_ok()) {
        let (dialer, listener) = (&proof.dialer_text, &proof.listener_text);
        let text = format!("{dialer} to {listener}, MTU {}", proof.mtu);
        return (true, text);
    }
    let shared = proofs.iter().find(|proof| proof.shares_network);
    let reason = shared.and_then(|proof| proof.short.as_ref().err());
    let text = match reason {
        Some(reason) => format!("no message crosses the hosts' RDMA ports: {reason}"),
        None => "the hosts' RDMA networks differ".to_owned(),
    };
    (false, text)
}

/// Returns the reason why a host cannot use RDMA.
fn no_rdma(end: PairEnd<'_>) -> Option<&str> {
    if !end.facts.has_rdma_build {
        return Some("this rdpipe was built without RDMA");
    }
    end.facts.no_rdma.as_deref()
}
