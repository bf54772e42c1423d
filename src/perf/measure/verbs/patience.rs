//! When a wait ends without what it waits for: the task was stopped, or nothing has come for too long.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A wait without a result for so long fails. An operation that is lost is sent again for some 4 s.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// The number of polls between two looks at the clock, which takes as long as a few polls.
const POLLS: u32 = 1024;

/// What the thread of a measurement is told while it runs.
#[derive(Debug)]
pub(super) struct RunSignal {
    is_stopped: AtomicBool,
    /// The number that the other end has told at its end; [`u64::MAX`] before.
    number: AtomicU64,
}

impl RunSignal {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_stopped: AtomicBool::new(false),
            number: AtomicU64::new(u64::MAX),
        })
    }

    /// Ends the measurement.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Passes on the number that the other end has told.
    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Returns the number that the other end has told, for instance of its operations; none before the other end has finished.
    pub(super) fn number(&self) -> Option<u64> {
        let number = self.number.load(Ordering::Relaxed);
        (number != u64::MAX).then_some(number)
    }

    /// Checks whether the measurement may go on. A loop whose waits all end at once calls it by itself.
    ///
    /// # Errors
    ///
    /// The measurement was stopped.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err("the measurement was stopped".to_owned());
        }
        Ok(())
    }
}

/// Stops a measurement when it is dropped: the task that measures was cancelled, or has failed.
pub(super) struct StopOnDrop(pub(super) Arc<RunSignal>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// One wait, and the time that it may take.
pub(super) struct Patience<'a> {
    signal: &'a RunSignal,
    limit: Duration,
    /// The time of the first look at the clock: a wait that ends soon takes none.
    since: Option<Instant>,
    polls: u32,
}

impl<'a> Patience<'a> {
    pub(super) fn new(signal: &'a RunSignal, limit: Duration) -> Self {
        Self {
            signal,
            limit,
            since: None,
            polls: 0,
        }
    }

    /// Counts a poll that found nothing. Returns true if it was time for a [`check`](Self::check), and for other checks that
    /// take longer than a poll.
    ///
    /// # Errors
    ///
    /// Those of `check`.
    pub(super) fn has_polled(&mut self) -> Result<bool, String> {
        self.polls += 1;
        if self.polls < POLLS {
            return Ok(false);
        }
        self.polls = 0;
        // On a machine with fewer processors than threads that poll, the thread that is waited for may have none.
        thread::yield_now();
        self.check()?;
        Ok(true)
    }

    /// Checks whether the wait may go on.
    ///
    /// # Errors
    ///
    /// The measurement was stopped, or nothing has come for too long.
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.signal.check()?;
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= self.limit {
            let seconds = self.limit.as_secs();
            return Err(format!("nothing has arrived for {seconds} s"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_is_stopped_and_when_its_time_has_passed() {
        let signal = RunSignal::new();
        let mut patience = Patience::new(&signal, Duration::from_millis(20));
        let fault = loop {
            if let Err(fault) = patience.has_polled() {
                break fault;
            }
        };
        assert!(fault.contains("nothing has arrived"), "{fault}");
        drop(StopOnDrop(Arc::clone(&signal)));
        let mut patience = Patience::new(&signal, SILENCE);
        assert!(patience.check().unwrap_err().contains("stopped"));
    }

    #[test]
    fn a_number_is_known_when_the_other_end_has_told_it() {
        let signal = RunSignal::new();
        assert_eq!(signal.number(), None);
        signal.set_number(0);
        assert_eq!(signal.number(), Some(0));
    }
}
