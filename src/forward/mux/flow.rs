//! One connection of a tunnel, at one end. Pure, no I/O.

use super::window::FlowWindow;

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

    /// Counts bytes that were sent.
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
