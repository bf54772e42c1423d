//! Tests against the sysfs of the machine that they run on, if it has RDMA. The other tests use made-up trees.

use super::*;
use crate::transport::rdma::ports::{
    device::{Inventory, MTUS},
    sysfs::Roots,
};

#[test]
fn the_ports_of_this_machine_are_found() {
    let inventory = Inventory::read(&Roots::default());
    let candidates = match DeviceChoice::default().candidates(&inventory) {
        Ok(candidates) => candidates,
        Err(reason) => {
            assert!(
                std::env::var_os("RDPIPE_REQUIRE_RDMA").is_none(),
                "{reason}"
            );
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
    for candidate in &candidates {
        eprintln!("{candidate}: {:?}", candidate.offer);
        assert!(MTUS.contains(&candidate.offer.mtu));
    }
    // scripts/guest says what its guests have.
    if std::env::var("RDPIPE_RIG").is_ok_and(|rig| rig.starts_with("guest")) {
        let first: Vec<_> = candidates
            .iter()
            .take(2)
            .map(Candidate::to_string)
            .collect();
        let expected = [
            "rxe0 port 1, GID 1 (RoCE v2, 10.99.0.1 on d0)",
            "rxe1 port 1, GID 1 (RoCE v2, 10.98.0.1 on d1)",
        ];
        assert_eq!(first, expected);
        let offer = &candidates[0].offer;
        assert!(offer.software);
        assert_eq!(
            (offer.prefix, offer.mtu, offer.rate_mbps),
            (Some(24), 4096, 2_500)
        );
    }
}
