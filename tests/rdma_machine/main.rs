//! RDMA that is missing, broken or taken away: these tests change the machine for each other, and take turns.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod absence;
mod link_down;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use support::programs::{lacks_guest, lacks_rdma};

/// The machine, for one test at a time; none where there is no RDMA, or where the machine must stay as it is.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let skipped = lacks_rdma() || lacks_guest();
    (!skipped).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
