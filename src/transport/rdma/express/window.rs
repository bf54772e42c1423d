//! How many small frames may be under way, and what has been consumed. Pure, no I/O.
//!
//! Counts are modulo 2^32, and differences of counts are at most the size of a window.

use std::io;

use crate::transport::data::slots::invalid;

/// The frames that this end sends: at most one window of them is not yet reported as consumed.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendWindow {
    size: u32,
    sent: u32,
    consumed: u32,
}

/// The frames that this end receives.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiveWindow {
    size: u32,
    received: u32,
    consumed: u32,
    /// The count that the peer was told last.
    reported: u32,
}

impl SendWindow {
    /// A window for `size` frames: as many as the peer has receives for.
    pub(super) fn new(size: u32) -> Self {
        Self {
            size,
            sent: 0,
            consumed: 0,
        }
    }

    /// Returns the most frames that may be under way.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of frames that the peer has not reported as consumed.
    pub(super) fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.consumed)
    }

    /// Returns true if another frame may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.outstanding() < self.size
    }

    /// Returns true if half a window of frames or more is not reported as consumed. The peer sends a report when its
    /// reader has consumed them.
    pub(super) fn expects_report(&self) -> bool {
        self.outstanding() >= batch(self.size)
    }

    /// Returns true if the peer has reported that it consumed a frame.
    pub(super) fn has_consumed(&self) -> bool {
        self.consumed != 0
    }

    /// Counts a frame. Returns its number.
    pub(super) fn send(&mut self) -> u32 {
        let number = self.sent;
        self.sent = self.sent.wrapping_add(1);
        number
    }

    /// Returns the numbers of the frames that the peer has not reported as consumed, the oldest first.
    pub(super) fn unconsumed(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.consumed;
        (0..self.outstanding()).map(move |nth| first.wrapping_add(nth))
    }

    /// Takes a report of the peer. Returns true if it has consumed more than was known.
    /// Fails if the peer reports frames that were not sent, or fewer than before.
    pub(super) fn acknowledge(&mut self, consumed: u32) -> io::Result<bool> {
        let more = consumed.wrapping_sub(self.consumed);
        if more > self.outstanding() {
            return Err(invalid("a report of small frames that were not sent"));
        }
        self.consumed = consumed;
        Ok(more > 0)
    }
}

impl ReceiveWindow {
    /// A window for `size` frames.
    pub(super) fn new(size: u32) -> Self {
        Self {
            size,
            received: 0,
            consumed: 0,
            reported: 0,
        }
    }

    /// Counts a frame that has arrived.
    /// Fails if the peer has sent more frames than it may.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        if self.received.wrapping_sub(self.reported) >= self.size {
            return Err(invalid("a small frame beyond its window"));
        }
        self.received = self.received.wrapping_add(1);
        Ok(())
    }

    /// Counts a frame that was read.
    pub(super) fn consume(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Returns true if so many frames were consumed that the peer must be told.
    pub(super) fn is_report_due(&self) -> bool {
        self.consumed.wrapping_sub(self.reported) >= batch(self.size)
    }

    /// Returns the count for a report that is sent now.
    pub(super) fn report(&mut self) -> u32 {
        self.reported = self.consumed;
        self.consumed
    }
}

/// Returns the number of consumed frames for which a report is sent, if no frame carries it earlier: half of the
/// window. So of the frames of one window at most two reports are under way.
fn batch(size: u32) -> u32 {
    size.div_ceil(2).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both directions are full and no end reads for a while, in any order: no window is exceeded, at most three
        /// reports are unread, and in the end all frames arrive. Frames carry the count, or only reports do, as in an
        /// encrypted stream.
        #[test]
        fn no_window_is_exceeded_and_nothing_is_stuck(sizes in [1_u32..9, 1_u32..9], start: u32, frames_carry: bool, acts in prop::collection::vec(0..6_u8, 0..400)) {
            let mut ends = [(); 2].map(|()| End::new(sizes, start, frames_carry));
            let all = acts.into_iter().chain((0..6).cycle().take(600));
            for act in all {
                let [a, b] = &mut ends;
                let (this, other) = if act % 2 == 0 { (a, b) } else { (b, a) };
                match act / 2 {
                    0 => this.send(other),
                    1 => this.take()?,
                    _ => this.read(other),
                }
                let reports = other_reports(&ends);
                prop_assert!(reports <= 3, "{reports} reports are unread");
            }
            for end in &ends {
                prop_assert!(end.sends.sent.wrapping_sub(start) > 20, "{end:?}");
            }
        }
    }

    fn other_reports(ends: &[End; 2]) -> usize {
        let reports = |end: &End| end.inbox.iter().filter(|frame| !frame.is_data).count();
        ends.iter().map(reports).max().unwrap_or(0)
    }

    #[derive(Debug)]
    struct End {
        sends: SendWindow,
        receives: ReceiveWindow,
        inbox: VecDeque<Frame>,
        unread: u32,
        /// Data carries the count of consumed frames.
        frames_carry: bool,
    }

    /// Data, or a report.
    #[derive(Debug)]
    struct Frame {
        is_data: bool,
        consumed: Option<u32>,
    }

    impl End {
        fn new(sizes: [u32; 2], start: u32, frames_carry: bool) -> Self {
            // Each end has its own size; the window of a direction is the smaller one.
            let size = sizes[0].min(sizes[1]);
            let (mut sends, mut receives) = (SendWindow::new(size), ReceiveWindow::new(size));
            (sends.sent, sends.consumed) = (start, start);
            (receives.received, receives.consumed, receives.reported) = (start, start, start);
            Self {
                sends,
                receives,
                inbox: VecDeque::new(),
                unread: 0,
                frames_carry,
            }
        }

        fn send(&mut self, to: &mut Self) {
            if self.sends.has_room() {
                self.sends.send();
                let consumed = self.frames_carry.then(|| self.receives.report());
                to.inbox.push_back(Frame {
                    is_data: true,
                    consumed,
                });
            }
        }

        /// Takes what has arrived off the queue.
        fn take(&mut self) -> Result<(), TestCaseError> {
            while let Some(Frame { is_data, consumed }) = self.inbox.pop_front() {
                if let Some(consumed) = consumed {
                    self.sends
                        .acknowledge(consumed)
                        .map_err(|e| TestCaseError::fail(e.to_string()))?;
                }
                if is_data {
                    self.receives
                        .receive()
                        .map_err(|e| TestCaseError::fail(e.to_string()))?;
                    self.unread += 1;
                }
            }
            Ok(())
        }

        fn read(&mut self, to: &mut Self) {
            if self.unread > 0 {
                self.unread -= 1;
                self.receives.consume();
                if self.receives.is_report_due() {
                    to.inbox.push_back(Frame {
                        is_data: false,
                        consumed: Some(self.receives.report()),
                    });
                }
            }
        }
    }

    #[test]
    fn a_peer_cannot_report_what_was_not_sent() {
        let mut window = SendWindow::new(4);
        window.send();
        assert!(window.acknowledge(2).is_err());
        assert!(window.acknowledge(1).is_ok_and(|more| more));
        assert!(window.acknowledge(0).is_err(), "fewer than before");
        assert!(window.acknowledge(1).is_ok_and(|more| !more));
    }

    #[test]
    fn a_peer_cannot_send_more_than_the_window() {
        let mut window = ReceiveWindow::new(2);
        window.receive().unwrap();
        window.receive().unwrap();
        window.consume();
        assert!(window.receive().is_err(), "the peer was not told");
        window.report();
        assert!(window.receive().is_ok());
    }
}
