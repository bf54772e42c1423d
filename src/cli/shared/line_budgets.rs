//! The lines of a log that each client may cause: some at once, then a few a second. What is beyond is counted.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The lines of one client in each second, for as long as it likes: a person can still read the others.
pub(crate) const LINES_A_SECOND: u32 = 5;

/// The lines of one client at once: more than an honest client causes that ends several sessions at a time.
const LINES_AT_ONCE: u32 = 20;

const LINE_TIME: Duration = Duration::from_millis(1000 / LINES_A_SECOND as u64);

/// The budgets of all clients. Clones are the same budgets.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineBudgets(Arc<Mutex<HashMap<String, LineBudget>>>);

/// The budget of one client.
#[derive(Debug)]
struct LineBudget {
    /// The time when the client may cause [`LINES_AT_ONCE`] again.
    full_at: Instant,
    left_out: u64,
}

impl LineBudgets {
    /// Counts a line of a client. Returns how many lines before it were left out, or none if this one must be.
    pub(crate) fn admit(&self, client: &str, now: Instant) -> Option<u64> {
        let mut budgets = self.lock();
        if let Some(budget) = budgets.get_mut(client) {
            return budget.admit(now);
        }
        let mut budget = LineBudget {
            full_at: now,
            left_out: 0,
        };
        let admitted = budget.admit(now);
        budgets.insert(client.to_owned(), budget);
        admitted
    }

    /// Takes the counts of the lines that were left out, of each client that may cause a line again.
    pub(crate) fn take_left_out(&self, now: Instant) -> Vec<(String, u64)> {
        let mut budgets = self.lock();
        budgets.retain(|_, budget| budget.full_at > now || budget.left_out > 0);
        let told = |budget: &LineBudget| budget.left_out > 0 && budget.may_cause(now);
        let left_out = budgets.iter_mut().filter(|(_, budget)| told(budget));
        left_out
            .filter_map(|(client, budget)| Some((client.clone(), budget.admit(now)?)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, LineBudget>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineBudget {
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if !self.may_cause(now) {
            self.left_out += 1;
            return None;
        }
        self.full_at = self.full_at.max(now) + LINE_TIME;
        Some(std::mem::take(&mut self.left_out))
    }

    fn may_cause(&self, now: Instant) -> bool {
        self.full_at.max(now) + LINE_TIME <= now + LINES_AT_ONCE * LINE_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_burst_and_then_a_few_lines_a_second() {
        let budgets = LineBudgets::default();
        let start = Instant::now();
        let at_once = (0..1000).filter(|_| budgets.admit("alice", start).is_some());
        assert_eq!(at_once.count(), LINES_AT_ONCE as usize);
        assert_eq!(budgets.admit("bob", start), Some(0), "another client");
        // 1000 lines a second for ten seconds.
        let later = (1..=10_000).map(|millis| start + Duration::from_millis(millis));
        let admitted: Vec<u64> = later
            .filter_map(|now| budgets.admit("alice", now))
            .collect();
        assert_eq!(admitted.len(), 10 * LINES_A_SECOND as usize);
        assert_eq!(
            admitted[0],
            1000 - 20 + 199,
            "those before the first are counted"
        );
        assert_eq!(admitted[1], 199);
    }

    #[test]
    fn lines_that_were_left_out_are_told_once_although_none_follows() {
        let budgets = LineBudgets::default();
        let start = Instant::now();
        for _ in 0..25 {
            budgets.admit("alice", start);
        }
        assert!(
            budgets.take_left_out(start).is_empty(),
            "its budget is used up"
        );
        let later = start + LINE_TIME;
        assert_eq!(budgets.take_left_out(later), [("alice".to_owned(), 5)]);
        assert!(budgets.take_left_out(later + LINE_TIME).is_empty());
        let full = later + LINES_AT_ONCE * LINE_TIME;
        assert!(budgets.take_left_out(full).is_empty());
        assert!(budgets.lock().is_empty(), "a full budget is forgotten");
    }
}
