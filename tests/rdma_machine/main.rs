//! RDMA that is missing, broken or interrupted. These tests change the machine, so they run one at a time.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod absence;
mod link_down;
mod networks;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use support::programs::{lacks_guest, lacks_rdma};

/// Returns a lock on the machine, for one test at a time. Returns `None` if there is no RDMA, or if the machine is not
/// the guest of `scripts/guest`.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let skipped = lacks_rdma() || lacks_guest();
    (!skipped).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
