//! How many bytes of a connection the peer may send, and the memory that all connections share. Pure, no I/O.
//!
//! A connection begins with a small window. It grows while the local program reads as fast as bytes arrive, and shrinks
//! while bytes wait. All windows together never exceed the budget, so the memory of a tunnel is bounded by it, whatever
//! the number of its connections.

use super::MuxFault;

/// The memory that all windows of one end of a tunnel may take together.
pub(crate) const BUDGET_BYTES: u64 = 64 << 20;

/// The smallest window. More than 10,000 connections find room.
pub(crate) const MIN_WINDOW: u64 = 2 << 10;

/// The window of a new connection while memory is free: a request or an answer of most programs.
const FIRST_WINDOW: u64 = 16 << 10;

/// The largest window: 100 Gbit/s times 0.5 ms.
pub(crate) const MAX_WINDOW: u64 = 6 << 20;

/// A window that holds bytes which the program has not read shrinks down to this.
const SLOW_WINDOW: u64 = 256 << 10;

/// A new window takes at most this part of the free memory, so that many connections can follow.
const NEW_SHARE: u64 = 4096;

/// A window grows to at most this part of the free memory, so that many can grow.
const GROWN_SHARE: u64 = 8;

/// The memory that is kept for new connections: no window grows into it.
const KEPT_BYTES: u64 = BUDGET_BYTES / 4;

/// The memory of all windows of one end.
#[derive(Debug)]
pub(super) struct WindowBudget {
    free: u64,
}

impl WindowBudget {
    pub(super) fn new() -> Self {
        Self { free: BUDGET_BYTES }
    }

    /// Takes the memory of a new window; none if it is used up.
    pub(super) fn new_window(&mut self) -> Option<FlowWindow> {
        let first = (self.free / NEW_SHARE).clamp(MIN_WINDOW, FIRST_WINDOW);
        self.free = self.free.checked_sub(first)?;
        Some(FlowWindow {
            granted: first,
            received: 0,
            consumed: 0,
            target: first,
            reserved: first,
            since_growth: 0,
        })
    }

    /// Returns the memory of a window that has ended.
    pub(super) fn release(&mut self, window: &FlowWindow) {
        self.free += window.reserved;
    }

    /// Returns the memory that no window has.
    #[cfg(any(test, fuzzing))]
    pub(super) fn free(&self) -> u64 {
        self.free
    }
}

/// The receiving side of one connection. Counts are bytes since its beginning.
#[derive(Debug)]
pub(super) struct FlowWindow {
    /// The peer may send up to here.
    granted: u64,
    /// The peer has sent up to here.
    received: u64,
    /// The local program's socket has taken up to here.
    consumed: u64,
    /// The size of the window from the next grant on.
    target: u64,
    /// What the window takes of the budget.
    reserved: u64,
    /// The bytes that were consumed since the window grew.
    since_growth: u64,
}

impl FlowWindow {
    /// Returns the number of bytes that the peer may send at first.
    pub(super) fn first(&self) -> u32 {
        u32::try_from(self.granted).unwrap_or(u32::MAX)
    }

    /// Returns the number of bytes that were received and not consumed.
    pub(super) fn backlog(&self) -> u64 {
        self.received - self.consumed
    }

    /// Counts bytes that arrived.
    ///
    /// # Errors
    ///
    /// Fails if the peer has sent more than it may.
    pub(super) fn receive(&mut self, count: usize) -> Result<(), MuxFault> {
        self.received += count as u64;
        if self.received > self.granted {
            return Err(MuxFault::BeyondWindow);
        }
        Ok(())
    }

    /// Counts bytes that the local socket has taken. Returns how many more bytes the peer may send now, if it is worth a
    /// frame.
    pub(super) fn consume(&mut self, count: usize, budget: &mut WindowBudget) -> Option<u32> {
        let count = count as u64;
        self.consumed += count;
        self.since_growth += count;
        let backlog = self.backlog();
        if self.since_growth >= self.target {
            self.since_growth = 0;
            if backlog == 0 {
                let free = (budget.free + self.reserved).saturating_sub(KEPT_BYTES);
                let share = (free / GROWN_SHARE).max(FIRST_WINDOW.min(self.target));
                self.target = (2 * self.target).min(MAX_WINDOW).min(share);
            } else if 4 * backlog > self.target && self.target > SLOW_WINDOW {
                self.target /= 2;
            }
        }
        let outstanding = self.granted - self.consumed;
        let more = self.target.saturating_sub(outstanding);
        let is_due = 2 * more >= self.target;
        // What is reserved covers what the peer may send and what has not been consumed.
        let needed = self.target.max(if is_due {
            outstanding + more
        } else {
            outstanding
        });
        if needed > self.reserved {
            let missing = needed - self.reserved;
            if missing > budget.free {
                // Others have taken the memory meanwhile.
                self.target = self.reserved;
                let more = self.target.saturating_sub(outstanding);
                return self.grant(more, 2 * more >= self.target);
            }
            budget.free -= missing;
        } else {
            budget.free += self.reserved - needed;
        }
        self.reserved = needed;
        self.grant(more, is_due)
    }

    fn grant(&mut self, more: u64, is_due: bool) -> Option<u32> {
        if !is_due || more == 0 {
            return None;
        }
        self.granted += more;
        u32::try_from(more).ok()
    }
}
