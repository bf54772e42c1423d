//! The inventory of this host, read once for all connections that are made within a moment.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{device::Inventory, sysfs::Roots};

/// The age up to which an inventory is used again.
///
/// A reading opens a file for each entry of a GID table. With one or two readings each, 200 connections at once over soft-RoCE
/// took 34 s on an emulated processor, and 8 s when they shared one. A port that goes away meanwhile costs an attempt, because
/// each connection proves its ports. A port that comes is used by connections that begin half a second later.
const MAX_AGE: Duration = Duration::from_millis(500);

/// The last inventory that was read.
static LAST: Mutex<LastRead> = Mutex::new(LastRead(None));

struct LastRead(Option<(Instant, Arc<Inventory>)>);

/// Returns the devices of this host as they are now, or were a moment ago. Blocks while another thread reads them.
pub(crate) fn inventory() -> Arc<Inventory> {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.recent(Instant::now, || Inventory::read(&Roots::default()))
}

impl LastRead {
    /// Returns the last inventory, or a new one if that is too old.
    fn recent(
        &mut self,
        now: impl Fn() -> Instant,
        read: impl FnOnce() -> Inventory,
    ) -> Arc<Inventory> {
        if let Some((read_at, inventory)) = &self.0 {
            if now().duration_since(*read_at) < MAX_AGE {
                return Arc::clone(inventory);
            }
        }
        let inventory = Arc::new(read());
        // The age counts from the end of the reading: on a slow machine the reading itself takes longer than the age.
        self.0 = Some((now(), Arc::clone(&inventory)));
        inventory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_a_moment_share_one_reading() {
        let empty = || Inventory {
            devices: Vec::new(),
        };
        let began = Instant::now();
        let mut last = LastRead(None);
        let first = last.recent(|| began, empty);
        let second = last.recent(|| began + MAX_AGE / 2, empty);
        assert!(Arc::ptr_eq(&first, &second));
        let third = last.recent(|| began + MAX_AGE, empty);
        assert!(!Arc::ptr_eq(&first, &third), "it is too old");
    }
}
