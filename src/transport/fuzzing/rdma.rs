//! The messages with which a peer that has the key sets up and renews a link.

use super::{runtime::run, script::FuzzScript};
use crate::transport::{connect::share_without_lanes, rdma::fuzzing};

/// Reads `data` as a dialer's ports, an acceptor's pairs of ports, a part of a link, or the steps of a renewal: the first
/// byte chooses one of them. Each is refused or leads to a plan that this end allows.
pub fn rdma(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => fuzzing::offer(rest),
        1 => fuzzing::proposal(rest),
        2 => fuzzing::part(rest),
        _ => run(async {
            fuzzing::renewal(&share_without_lanes(), &mut FuzzScript::new(rest));
        }),
    }
}
