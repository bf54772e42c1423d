//! The halves of a stream that its user has dropped.

use std::time::Instant;

use crate::OnDrop;

/// The halves that the user of a stream holds, and what was left to the endpoint.
pub(super) struct DroppedHalves {
    /// The number of halves that the user holds.
    held: u8,
    pub(super) on_drop: OnDrop,
    /// The user has dropped the writer.
    pub(super) writer_left: bool,
    /// Every byte that was written has been given to the data path, and no more can follow.
    pub(super) all_was_sent: bool,
    /// The reader that was dropped before the end of its direction.
    pub(super) reader: Option<DroppedReader>,
    /// The time when the last half was dropped.
    pub(super) since: Option<Instant>,
    pub(super) has_said_bye: bool,
}

/// A reader that was dropped before the end of its direction.
pub(super) struct DroppedReader {
    pub(super) since: Instant,
    /// The number of bytes that had arrived, and the number that the user had taken.
    pub(super) received: u64,
    pub(super) taken: u64,
}

impl DroppedHalves {
    /// The user holds `halves` halves.
    pub(super) fn new(halves: u8) -> Self {
        Self {
            held: halves,
            on_drop: OnDrop::Abort,
            writer_left: false,
            all_was_sent: false,
            reader: None,
            since: None,
            has_said_bye: false,
        }
    }

    /// Returns true if the user holds a half.
    pub(super) fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Returns true if this end has said Bye.
    pub(super) fn has_said_bye(&self) -> bool {
        self.has_said_bye
    }

    /// Notes that the user has dropped a half.
    pub(super) fn release(&mut self, now: Instant) {
        self.held -= 1;
        if self.held == 0 {
            self.since = Some(now);
        }
    }
}
