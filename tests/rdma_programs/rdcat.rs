//! rdcat with a ticket over RDMA, in both directions at once and in one direction.

use crate::support::programs::lacks_rdma;
use crate::support::programs::rdcat::{exchange, pair};

#[test]
fn both_directions_work_at_once_over_rdma() {
    if lacks_rdma() {
        return;
    }
    let bytes = [(6 << 20) + 7, (9 << 20) + 1];
    for said in exchange(pair("-v --transport rdma", "-v"), bytes) {
        assert!(said.contains(" over RDMA ("), "{said}");
        assert!(
            said.contains(&format!("Bytes {}\n", bytes[0] + bytes[1])),
            "{said}"
        );
    }
}

#[test]
fn one_direction_works_over_rdma() {
    if lacks_rdma() {
        return;
    }
    exchange(pair("--transport rdma --recv", ""), [0, 5_000_001]);
}
