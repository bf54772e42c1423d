//! The registered memory for the frames of both directions: pure arithmetic, which place belongs to which frame.

use std::ops::Range;

use super::header::{EXPRESS_HEADER_BYTES, EXPRESS_PAYLOAD_BYTES};

/// The bytes of one place: a frame with the most payload.
const PLACE_BYTES: usize = EXPRESS_HEADER_BYTES + EXPRESS_PAYLOAD_BYTES;

/// The receives beyond the window, for reports: more of them are never under way (see [`window`](super::window)).
pub(super) const REPORTS: u32 = 4;

/// The places of one lane: one for each frame that may be under way, in each direction that has frames; and for reports in
/// both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport::rdma) struct RingLayout {
    /// The most frames under way to the peer.
    pub(super) sends: u32,
    /// The most frames under way to this end.
    pub(super) receives: u32,
}

impl RingLayout {
    /// Places for `window` frames, rounded down to a power of two, in each direction that the stream has. With a power of two a
    /// frame keeps its place where its number wraps.
    pub(in crate::transport::rdma) fn new(window: u32, sends: bool, receives: bool) -> Self {
        let window = 1 << window.max(1).ilog2();
        let size = |wanted: bool| if wanted { window } else { 0 };
        Self {
            sends: size(sends),
            receives: size(receives),
        }
    }

    /// Returns the size of the memory, in bytes.
    pub(in crate::transport::rdma) fn bytes(self) -> usize {
        let places = self.sends + self.posted_receives();
        places as usize * PLACE_BYTES + REPORTS as usize * EXPRESS_HEADER_BYTES
    }

    /// Returns the number of receives that are posted.
    pub(super) fn posted_receives(self) -> u32 {
        self.receives + REPORTS
    }

    /// Returns the place of the frame with this number, if it has `bytes`.
    pub(super) fn send(self, number: u32, bytes: usize) -> Range<usize> {
        let start = (number % self.sends.max(1)) as usize * PLACE_BYTES;
        start..start + bytes
    }

    /// Returns the place of a receive.
    pub(super) fn receive(self, index: u32) -> Range<usize> {
        let start = (self.sends + index % self.posted_receives()) as usize * PLACE_BYTES;
        start..start + PLACE_BYTES
    }

    /// Returns the place of the report with this number.
    pub(super) fn report(self, number: u32) -> Range<usize> {
        let reports = (self.sends + self.posted_receives()) as usize * PLACE_BYTES;
        let start = reports + (number % REPORTS) as usize * EXPRESS_HEADER_BYTES;
        start..start + EXPRESS_HEADER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_places_overlap() {
        for (sends, receives) in [(true, true), (true, false), (false, true)] {
            let ring = RingLayout::new(3, sends, receives);
            let full = EXPRESS_HEADER_BYTES + EXPRESS_PAYLOAD_BYTES;
            let mut places: Vec<_> = (0..ring.sends).map(|n| ring.send(n, full)).collect();
            places.extend((0..ring.posted_receives()).map(|n| ring.receive(n)));
            places.extend((0..REPORTS).map(|n| ring.report(n)));
            places.sort_by_key(|place| place.start);
            assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert_eq!(places.last().map(|place| place.end), Some(ring.bytes()));
        }
    }

    #[test]
    fn neighbours_have_different_places_where_the_count_wraps() {
        for window in 2..9 {
            let ring = RingLayout::new(window, true, true);
            assert_ne!(ring.send(u32::MAX, 1), ring.send(0, 1), "{window}");
        }
    }
}
