//! The windows of connections: how many bytes the peer may send, and the memory that all connections share. Pure, no
//! I/O.
//!
//! A connection begins with a small window. It grows while the local program reads as fast as bytes arrive, and shrinks
//! while bytes wait. All windows together never exceed the budget, so the memory of a tunnel is bounded by it, whatever
//! the number of its connections and of its streams.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// The memory of all windows of one end of a tunnel, which its streams share. A window that keeps its size does not
/// touch it.
#[derive(Debug)]
pub(crate) struct WindowBudget {
    free: AtomicU64,
}

impl Default for WindowBudget {
    fn default() -> Self {
        Self {
            free: AtomicU64::new(BUDGET_BYTES),
        }
    }
}

impl WindowBudget {
    /// Takes the memory of a new window; none if it is used up.
    pub(super) fn new_window(&self) -> Option<FlowWindow> {
        let first = (self.free() / NEW_SHARE).clamp(MIN_WINDOW, FIRST_WINDOW);
        self.take(first).then_some(FlowWindow {
            granted: first,
            received: 0,
            consumed: 0,
            target: first,
            reserved: first,
            since_growth: 0,
        })
    }

    /// Gives the memory of a window back that has ended.
    pub(super) fn release(&self, window: &FlowWindow) {
        self.give_back(window.reserved);
    }

    /// Returns the memory that no window has.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Takes memory. Returns false if less is free.
    fn take(&self, bytes: u64) -> bool {
        let less = |free: u64| free.checked_sub(bytes);
        let relaxed = Ordering::Relaxed;
        self.free.fetch_update(relaxed, relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
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
    /// Fails if the peer has sent more than it may.
    pub(super) fn receive(&mut self, count: usize) -> Result<(), MuxFault> {
        self.received += count as u64;
        if self.received > self.granted {
            return Err(MuxFault::BeyondWindow);
        }
        Ok(())
    }

    /// Counts bytes that the local socket has taken. Returns how many more bytes the peer may send now, if it is worth
    /// a frame.
    pub(super) fn consume(&mut self, count: usize, budget: &WindowBudget) -> Option<u32> {
        let count = count as u64;
        self.consumed += count;
        self.since_growth += count;
        let backlog = self.backlog();
        if self.since_growth >= self.target {
            self.since_growth = 0;
            if backlog == 0 {
                let free = (budget.free() + self.reserved).saturating_sub(KEPT_BYTES);
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
            if !budget.take(needed - self.reserved) {
                // Others have taken the memory meanwhile.
                self.target = self.reserved;
                let more = self.target.saturating_sub(outstanding);
                return self.grant(more, 2 * more >= self.target);
            }
        } else if needed < self.reserved {
            budget.give_back(self.reserved - needed);
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

/// The largest number of bytes that a peer may grant and that were not sent: far above the largest window.
const MOST_GRANTED: u64 = 1 << 31;

/// One connection.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) sending: FlowSending,
    /// The bytes that may be sent.
    send_window: u64,
    pub(super) window: FlowWindow,
    /// The peer sends no more bytes.
    pub(super) has_received_fin: bool,
    pub(super) due: FlowDue,
    /// The flow is in the queue of those with frames to send.
    pub(super) is_queued: bool,
    /// The peer has reset the connection. Only bytes that it sent before are left.
    pub(super) is_reset_by_peer: bool,
}

/// What this end may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlowSending {
    /// The peer has not answered, or this end has not answered the peer.
    Opening,
    /// Bytes may be sent.
    Open,
    /// The end is sent next, or was sent.
    Finished,
}

/// The frames of a connection that are to be sent, in the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct FlowDue {
    /// Ask the peer to connect to this target.
    pub(super) open: Option<Vec<u8>>,
    /// Answer that the connection is made.
    pub(super) opened: bool,
    /// Answer that the connection cannot be made.
    pub(super) refused: Option<Vec<u8>>,
    /// Grant so many bytes.
    pub(super) window: u32,
    /// No more bytes follow.
    pub(super) fin: bool,
    /// The connection was reset: nothing else is sent, but an end that stands before the reset.
    pub(super) reset: bool,
}

impl Flow {
    /// Returns a connection that is being opened.
    pub(super) fn new(window: FlowWindow, send_window: u32) -> Self {
        Self {
            sending: FlowSending::Opening,
            send_window: u64::from(send_window),
            window,
            has_received_fin: false,
            due: FlowDue::default(),
            is_queued: false,
            is_reset_by_peer: false,
        }
    }

    /// Returns the number of bytes that may be sent now.
    pub(super) fn sendable(&self) -> u64 {
        let is_open = self.sending == FlowSending::Open && !self.due.opened;
        if is_open { self.send_window } else { 0 }
    }

    pub(super) fn sent(&mut self, count: usize) {
        self.send_window -= count as u64;
    }

    /// Adds bytes that may be sent. Returns false if the peer grants too many.
    pub(super) fn add_window(&mut self, more: u32) -> bool {
        self.send_window += u64::from(more);
        self.send_window <= MOST_GRANTED
    }

    /// Records that the peer has reset the connection: nothing is sent and nothing else is received.
    pub(super) fn reset_by_peer(&mut self) {
        self.sending = FlowSending::Finished;
        self.has_received_fin = true;
        self.due = FlowDue::default();
        self.is_reset_by_peer = true;
    }

    /// Returns true if both directions have ended and nothing is left to send or to consume.
    pub(super) fn is_over(&self) -> bool {
        let is_sent = self.sending == FlowSending::Finished && !self.due.fin;
        is_sent && self.has_received_fin && self.window.backlog() == 0
    }
}
