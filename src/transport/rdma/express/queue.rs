//! The queue pair of the express path: sends small frames from registered memory, and copies those that arrive to the
//! heap.
//!
//! | bytes  | field    | meaning                                                                              |
//! |--------|----------|--------------------------------------------------------------------------------------|
//! | 0..4   | length   | payload bytes; 0 in a report                                                         |
//! | 4..8   | consumed | the number of frames of the other direction that this end has consumed, modulo 2^32  |
//! | 8..16  | offset   | bytes of this direction before the payload                                           |
//! | 16..24 | digest   | as in the header of a chunk                                                          |
//! | 24..40 | tag      | as in the header of a chunk; that of the count in a report                           |
//! | 40..48 | follows  | as in the header of a chunk; 0 in a report                                           |
//! | 48..56 | check    | xxh3-64 of bytes 0..48                                                               |
//!
//! All integers are little-endian. A *report* is a frame without payload: it carries only the number of consumed
//! frames. A small frame has no slot, so its header is shorter than that of a chunk.
//!
//! In an encrypted stream only reports carry a count, which has a tag: a forged one would open the window. The tag of a
//! chunk cannot cover the count, because a chunk that is sent again keeps its tag.

use std::{collections::VecDeque, io, ops::Range};

use rdpipe_digest::xxh3_64;
use serde::{Deserialize, Serialize};

use super::{
    path::ExpressSettings,
    window::{ReceiveWindow, SendWindow},
};
use crate::{
    faults::Faults,
    transport::{
        control::seal::{Mark, ReportSeal, TAG_BYTES},
        data::{
            frame::{Damage, HEADER_BYTES, Header},
            slots::{NO_SLOT, Slot, invalid},
        },
        rdma::{
            pool::RdmaSlot,
            verbs::{
                device::Completion,
                queue_pair::{QueuePair, QueueSizes},
            },
        },
    },
};

/// Of so many sends one is signalled. Its completion frees the entries of the send queue up to it.
const SIGNAL_EVERY: u64 = 32;

/// The bit of a work request's number that tells a send from a receive.
const SEND: u64 = 1 << 63;

/// What [`ExpressQueue::drain`] has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Drained {
    /// Frames with payload have arrived.
    pub(super) frames: bool,
    /// The sending side can go on: the peer has consumed frames, or sends have completed.
    pub(super) room: bool,
}

/// The frames for which the peer has memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerWindows {
    /// The most frames under way to this end.
    pub(super) sends: u32,
    /// The most frames under way to the peer.
    pub(super) receives: u32,
}

/// A connected queue pair, the frames under way, and those that have arrived.
pub(super) struct ExpressQueue {
    pair: QueuePair,
    ring: RingLayout,
    sends: SendWindow,
    receives: ReceiveWindow,
    reports: u32,
    /// The numbers of sends posted, and known to have completed.
    posted: u64,
    completed: u64,
    /// Frames that have arrived, in order.
    arrived: VecDeque<(RdmaSlot, Header)>,
    /// The number of frames that have arrived with payload.
    count: u64,
    heap: HeapSlots,
    /// What seals the reports of this end, and opens those of the peer; none if the stream is not encrypted.
    seals: Option<[ReportSeal; 2]>,
    faults: Faults,
}

/// Returns the sizes of the queues for the frames of `ring`.
pub(super) fn queue_sizes(ring: RingLayout) -> QueueSizes {
    let signals = u32::try_from(2 * SIGNAL_EVERY).unwrap_or(u32::MAX);
    QueueSizes {
        sends: ring.sends + REPORTS + signals,
        receives: ring.posted_receives(),
        inline_bytes: u32::try_from(EXPRESS_HEADER_BYTES).unwrap_or_default() + INLINE_PAYLOAD,
    }
}

/// The payload that is to fit into a work request, in bytes. Larger frames are read from memory by the device.
const INLINE_PAYLOAD: u32 = 176;

impl ExpressQueue {
    /// Uses a connected queue pair whose receives are posted.
    pub(super) fn new(
        pair: QueuePair,
        ring: RingLayout,
        peer: PeerWindows,
        settings: ExpressSettings,
    ) -> Self {
        let [out, back] = settings.reports;
        Self {
            pair,
            ring,
            sends: SendWindow::new(ring.sends.min(peer.receives)),
            receives: ReceiveWindow::new(ring.receives.min(peer.sends)),
            reports: 0,
            posted: 0,
            completed: 0,
            arrived: VecDeque::new(),
            count: 0,
            heap: HeapSlots::new(settings.generation),
            seals: out.zip(back).map(Into::into),
            faults: settings.faults,
        }
    }

    /// Returns true if a frame can be sent now. Some entries of the send queue are kept for reports.
    pub(super) fn has_room(&self) -> bool {
        let most = u64::from(queue_sizes(self.ring).sends - REPORTS);
        self.sends.has_room() && self.posted - self.completed < most
    }

    /// Returns the most frames that may be under way to the peer.
    pub(super) fn window(&self) -> usize {
        self.sends.size() as usize
    }

    /// Returns true if so many frames are under way that the peer will report.
    pub(super) fn expects_report(&self) -> bool {
        self.sends.expects_report()
    }

    /// Returns the number of frames that have arrived with payload.
    pub(super) fn frames_received(&self) -> u64 {
        self.count
    }

    /// Returns true if the peer has reported that it consumed a frame.
    pub(super) fn has_carried(&self) -> bool {
        self.sends.has_consumed()
    }

    /// Sends the frame of a chunk, for which there is room.
    pub(super) fn send(&mut self, header: &Header, payload: &[u8]) -> io::Result<()> {
        let consumed = match self.seals {
            None => self.receives.report(),
            Some(_) => 0,
        };
        let header = ExpressHeader::of(header, consumed);
        let range = self
            .ring
            .send(self.sends.send(), EXPRESS_HEADER_BYTES + payload.len());
        self.pair.write(range.start, &header.encode());
        self.pair.write(range.start + EXPRESS_HEADER_BYTES, payload);
        self.post(range)
    }

    fn post(&mut self, range: std::ops::Range<usize>) -> io::Result<()> {
        self.posted += 1;
        if self.faults.loses_express_at(self.posted) {
            self.pair.fail()?;
        }
        let is_signalled = self.posted % SIGNAL_EVERY == 0;
        self.pair
            .post_send(SEND | self.posted, &range, is_signalled)
    }

    /// Sends a report, if one is due and the send queue has room.
    fn report_if_due(&mut self) -> io::Result<()> {
        let has_entry = self.posted - self.completed < u64::from(queue_sizes(self.ring).sends);
        if !self.receives.is_report_due() || !has_entry {
            return Ok(());
        }
        let range = self.ring.report(self.reports);
        self.reports = self.reports.wrapping_add(1);
        let consumed = self.receives.report();
        let tag = self.seals.as_mut().map(|[out, _]| out.seal(consumed));
        let header = ExpressHeader::report(consumed, tag.unwrap_or_default());
        self.pair.write(range.start, &header.encode());
        self.post(range)
    }

    /// Takes everything off the completion queue.
    /// Fails if the queue pair is broken, and with [`io::ErrorKind::InvalidData`] if the peer has broken a rule.
    pub(super) fn drain(&mut self) -> io::Result<Drained> {
        let mut drained = Drained::default();
        while let Some(Completion { id, result }) = self.pair.completions().poll_one()? {
            let bytes = result?;
            if id & SEND == 0 {
                self.receive(id, bytes, &mut drained)?;
            } else {
                self.completed = id & !SEND;
                drained.room = true;
                self.report_if_due()?;
            }
        }
        Ok(drained)
    }

    /// Takes one frame that has arrived, and posts its receive again.
    fn receive(&mut self, id: u64, bytes: usize, drained: &mut Drained) -> io::Result<()> {
        let index = u32::try_from(id).map_err(io::Error::other)?;
        let range = self.ring.receive(index);
        let mut header = [0; EXPRESS_HEADER_BYTES];
        self.pair.read(range.start, &mut header);
        let header = ExpressHeader::decode(&header).map_err(|damage| invalid(damage.text()))?;
        let length = header.length as usize;
        if length > EXPRESS_PAYLOAD_BYTES || bytes != EXPRESS_HEADER_BYTES + length {
            return Err(invalid(
                "a small frame of another size than its header says",
            ));
        }
        let is_report = length == 0;
        if let Some([_, back]) = self.seals.as_mut().filter(|_| is_report) {
            let checked = back.check(header.consumed, &header.mark.tag);
            checked.map_err(|_| invalid(Damage::Seal.text()))?;
        }
        if is_report || self.seals.is_none() {
            let has_consumed_more = self.sends.acknowledge(header.consumed)?;
            drained.room |= has_consumed_more;
            if is_report && !has_consumed_more {
                // Without this rule a peer could keep this end busy.
                return Err(invalid("a report of small frames without news"));
            }
        }
        if !is_report {
            self.receives.receive()?;
            let mut slot = self.heap.take();
            let payload = &mut slot.bytes_mut()[HEADER_BYTES..HEADER_BYTES + length];
            self.pair.read(range.start + EXPRESS_HEADER_BYTES, payload);
            self.arrived.push_back((slot, header.chunk()));
            self.count += 1;
            drained.frames = true;
        }
        self.pair.post_receive(id, &range)
    }

    /// Returns the end of the frame before the next one that has arrived.
    pub(super) fn next_follows(&self) -> Option<u64> {
        self.arrived.front().map(|(_, header)| header.follows)
    }

    /// Takes the next frame that has arrived.
    pub(super) fn take(&mut self) -> Option<(RdmaSlot, Header)> {
        self.arrived.pop_front()
    }

    /// Takes back the slot of a frame that was read.
    pub(super) fn release(&mut self, slot: RdmaSlot) -> io::Result<()> {
        self.heap.give_back(slot);
        self.receives.consume();
        self.report_if_due()
    }

    /// Returns the chunks that the peer has not reported as consumed, the oldest first: header and payload.
    pub(super) fn unconsumed(&self) -> Vec<(Header, Vec<u8>)> {
        let chunk = |number| {
            let range = self.ring.send(number, EXPRESS_HEADER_BYTES);
            let mut header = [0; EXPRESS_HEADER_BYTES];
            self.pair.read(range.start, &mut header);
            let header = ExpressHeader::decode(&header).ok()?;
            let mut payload = vec![0; header.length as usize];
            self.pair.read(range.end, &mut payload);
            Some((header.chunk(), payload))
        };
        self.sends.unconsumed().filter_map(chunk).collect()
    }
}

/// The bytes of one place: a frame with the most payload.
const PLACE_BYTES: usize = EXPRESS_HEADER_BYTES + EXPRESS_PAYLOAD_BYTES;

/// The receives beyond the window, for reports: more of them are never under way (see [`window`](super::window)).
pub(super) const REPORTS: u32 = 4;

/// The places of one express path: one for each frame that may be under way, in each direction that has frames; and for
/// reports in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport::rdma) struct RingLayout {
    /// The most frames under way to the peer.
    pub(super) sends: u32,
    /// The most frames under way to this end.
    pub(super) receives: u32,
}

impl RingLayout {
    /// Places for `window` frames, rounded down to a power of two, in each direction that the stream has. With a power
    /// of two a frame keeps its place where its number wraps.
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

/// The bytes of one slot: room for two of the largest frames, or for many small ones that wait for a reader together.
const SLOT_BYTES: usize = HEADER_BYTES + 2 * EXPRESS_PAYLOAD_BYTES;

/// Slots that are used again. There are never more than frames that were not consumed, so never more than a window.
pub(super) struct HeapSlots {
    spare: Vec<Box<[u8]>>,
    generation: u32,
}

impl HeapSlots {
    /// Slots for the express path of this generation.
    pub(super) fn new(generation: u32) -> Self {
        Self {
            spare: Vec::new(),
            generation,
        }
    }

    pub(super) fn take(&mut self) -> RdmaSlot {
        let fresh = || vec![0; SLOT_BYTES].into_boxed_slice();
        let bytes = self.spare.pop().unwrap_or_else(fresh);
        RdmaSlot::in_heap(self.generation, bytes)
    }

    pub(super) fn give_back(&mut self, slot: RdmaSlot) {
        self.spare.extend(slot.into_heap());
    }
}

/// The size of a header, in bytes.
pub(in crate::transport::rdma) const EXPRESS_HEADER_BYTES: usize = 56;

/// The most payload of a small frame, in bytes.
pub(in crate::transport::rdma) const EXPRESS_PAYLOAD_BYTES: usize = 4096;

const CHECKED_BYTES: usize = EXPRESS_HEADER_BYTES - size_of::<u64>();

/// The header of a small frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpressHeader {
    /// The number of payload bytes; 0 in a report.
    pub(super) length: u32,
    /// The number of frames of the other direction that this end has consumed, modulo 2^32.
    pub(super) consumed: u32,
    /// The number of bytes of this direction before the payload.
    pub(super) offset: u64,
    /// The digest or the tag of the payload; the tag of the count in a report.
    pub(super) mark: Mark,
    /// The end of the frame before it on this rail, over the link or the express path.
    pub(super) follows: u64,
}

impl ExpressHeader {
    pub(super) fn report(consumed: u32, tag: [u8; TAG_BYTES]) -> Self {
        Self {
            length: 0,
            consumed,
            offset: 0,
            mark: Mark { digest: 0, tag },
            follows: 0,
        }
    }

    /// The header for the chunk that `header` describes.
    pub(super) fn of(header: &Header, consumed: u32) -> Self {
        Self {
            length: header.length,
            consumed,
            offset: header.offset,
            mark: header.mark,
            follows: header.follows,
        }
    }

    /// Returns the header of the chunk, as the express paths know it.
    pub(super) fn chunk(&self) -> Header {
        Header {
            length: self.length,
            slot: NO_SLOT,
            offset: self.offset,
            mark: self.mark,
            follows: self.follows,
        }
    }

    pub(super) fn encode(&self) -> [u8; EXPRESS_HEADER_BYTES] {
        let mut bytes = [0; EXPRESS_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.consumed.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.mark.digest.to_le_bytes());
        bytes[24..24 + TAG_BYTES].copy_from_slice(&self.mark.tag);
        bytes[40..48].copy_from_slice(&self.follows.to_le_bytes());
        let check = xxh3_64(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    /// Fails with [`Damage::Header`] unless the bytes are exactly the encoding of their fields.
    pub(super) fn decode(bytes: &[u8; EXPRESS_HEADER_BYTES]) -> Result<Self, Damage> {
        let header = Self {
            length: u32::from_le_bytes(std::array::from_fn(|i| bytes[i])),
            consumed: u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])),
            offset: u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
            mark: Mark {
                digest: u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + i])),
                tag: std::array::from_fn(|i| bytes[24 + i]),
            },
            follows: u64::from_le_bytes(std::array::from_fn(|i| bytes[40 + i])),
        };
        if header.encode() == *bytes {
            Ok(header)
        } else {
            Err(Damage::Header)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn a_header_survives_the_wire(length: u32, consumed: u32, offset: u64, digest: u64, tag: [u8; TAG_BYTES], follows: u64, bit in 0..8 * EXPRESS_HEADER_BYTES) {
            let mark = Mark { digest, tag };
            let header = ExpressHeader { length, consumed, offset, mark, follows };
            let mut bytes = header.encode();
            prop_assert_eq!(ExpressHeader::decode(&bytes), Ok(header));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(ExpressHeader::decode(&bytes), Err(Damage::Header));
        }
    }
}
