//! The memory for what one copy keeps because its peer says so: names, targets, owners, announced files. Pure, no I/O.
//!
//! A peer decides how much that is, so each copy has a budget. What the lists of an honest copy need grows slowly with
//! its entries, because the long lists are in files without names: directories and hard links at the destination, sent
//! files at the source.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The budget of an agent that ssh has started. It is alone in its process.
pub(crate) const AGENT_BYTES: usize = 256 << 20;

/// The bytes that an entry of a set or a map of small values takes at most: hash tables double their size, and have the
/// old one beside the new one meanwhile.
pub(crate) const SET_ENTRY_BYTES: usize = 32;

/// The bytes that a path in a set or a map takes beside its own bytes.
pub(crate) const PATH_ENTRY_BYTES: usize = 128;

/// The memory that a copy may use for its lists.
#[derive(Debug)]
pub(crate) struct ListBudget {
    most: usize,
    used: AtomicUsize,
    remedy: &'static str,
    is_of_server: bool,
}

impl ListBudget {
    pub(crate) fn of_agent() -> Self {
        Self {
            most: AGENT_BYTES,
            used: AtomicUsize::new(0),
            remedy: "copy less at a time",
            is_of_server: false,
        }
    }

    /// Returns the budget of so many bytes of a copy of a server.
    pub(crate) fn of_server(most: usize) -> Self {
        Self {
            most,
            used: AtomicUsize::new(0),
            remedy: "copy less at a time, or give the server a larger -m or fewer --max-clients",
            is_of_server: true,
        }
    }

    /// Returns true for the budget of a copy of a server, whose clients may have made what it reads.
    pub(crate) fn is_of_server(&self) -> bool {
        self.is_of_server
    }

    /// Returns the bytes of the whole budget.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Takes bytes. Returns false if there are not so many left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.take_up_to(self.most, bytes)
    }

    /// Takes bytes for something that a copy can do without. Returns false if half of the budget is used.
    pub(crate) fn take_spare(&self, bytes: usize) -> bool {
        self.take_up_to(self.most / 2, bytes)
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        let next = |used: usize| Some(used.saturating_sub(bytes));
        let _ = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Returns the reason for the user why a copy ends that needs more.
    pub(crate) fn exceeded(&self) -> String {
        let mib = self.most >> 20;
        let remedy = self.remedy;
        format!("the lists of this copy need more than its {mib} MiB of memory; {remedy}")
    }

    /// Takes bytes, which are given back when the returned value is dropped; none if there are not so many left.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Option<HeldBytes> {
        self.take(bytes).then(|| HeldBytes {
            budget: Arc::clone(self),
            bytes,
        })
    }

    fn take_up_to(&self, most: usize, bytes: usize) -> bool {
        let next = |used: usize| used.checked_add(bytes).filter(|used| *used <= most);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

/// Bytes of a budget. Dropping them gives them back.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<ListBudget>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_ends_and_can_be_given_back() {
        let budget = ListBudget::of_server(4 << 20);
        assert!(budget.take_spare(2 << 20) && !budget.take_spare(1));
        assert!(budget.take(2 << 20) && !budget.take(1) && !budget.take(usize::MAX));
        budget.give_back(1);
        assert!(budget.take(1));
        assert_eq!(
            budget.exceeded(),
            "the lists of this copy need more than its 4 MiB of memory; copy less at a time, or give the server a larger -m or fewer --max-clients"
        );
    }
}
