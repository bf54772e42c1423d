//! The order of the frames of one rail, which arrive over two FIFOs: the link and the express path. Pure, no I/O.
//!
//! The header of each frame says where the frame before it on its rail ends. So a frame is the next one if it follows the
//! last one that was delivered, whatever other rails carry in between.

use std::{collections::VecDeque, io};

use crate::transport::data::{
    frame::{Damage, Header},
    slots::invalid,
};

/// How far the frames of a rail have been delivered, and the frames of the link that are early.
pub(in crate::transport::rdma) struct FrameOrder<S> {
    /// The end of the last frame that was delivered.
    end: u64,
    /// Frames whose predecessors, small frames, have not arrived, in order.
    early: VecDeque<EarlyFrame<S>>,
}

struct EarlyFrame<S> {
    /// The number of the frame on its link; 0 if the link has been replaced.
    number: u64,
    slot: S,
    header: Header,
}

impl<S> FrameOrder<S> {
    /// Returns the order before the first frame.
    pub(in crate::transport::rdma) fn new() -> Self {
        Self {
            end: 0,
            early: VecDeque::new(),
        }
    }

    /// Returns the end of the last frame that was delivered.
    pub(in crate::transport::rdma) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of early frames.
    pub(in crate::transport::rdma) fn early(&self) -> usize {
        self.early.len()
    }

    /// Returns true if other frames of the rail come between the last one that was delivered and this one.
    pub(in crate::transport::rdma) fn is_early(&self, header: &Header) -> bool {
        header.follows > self.end
    }

    /// Keeps an early frame, which has this `number` on its link.
    pub(in crate::transport::rdma) fn keep(&mut self, number: u64, slot: S, header: Header) {
        let before = |other: &EarlyFrame<S>| other.header.follows < header.follows;
        let place = self.early.partition_point(before);
        let frame = EarlyFrame {
            number,
            slot,
            header,
        };
        self.early.insert(place, frame);
    }

    /// Takes the next frame if it came early.
    pub(in crate::transport::rdma) fn take_next(&mut self) -> Option<(S, Header)> {
        let is_next = |frame: &&EarlyFrame<S>| frame.header.follows == self.end;
        self.early.front().filter(is_next)?;
        let EarlyFrame { slot, header, .. } = self.early.pop_front()?;
        Some((slot, header))
    }

    /// Records that a frame is delivered.
    pub(in crate::transport::rdma) fn deliver(&mut self, header: &Header) {
        self.end = header.end();
    }

    /// Checks that the oldest small frame that has arrived, which follows the end `small`, can still become the next one,
    /// and does not hide the one for which frames of the link wait.
    ///
    /// The next small frame is in order: the sending side may have taken it off the queue after the receiving side
    /// looked there.
    /// Fails with [`io::ErrorKind::InvalidData`].
    pub(in crate::transport::rdma) fn check(&self, small: u64) -> io::Result<()> {
        // Frames that were kept from an earlier link may wait for frames of either way.
        let waits_for_small = self.early.iter().any(|frame| frame.number > 0);
        if small < self.end || (small > self.end && waits_for_small) {
            return Err(invalid(Damage::Order.text()));
        }
        Ok(())
    }

    /// Drops the early frames that the peer sends again over a new link, because it knows of `frames` frames only that
    /// have arrived over the old one. Returns the others.
    pub(in crate::transport::rdma) fn leave_link(
        &mut self,
        frames: u64,
    ) -> impl Iterator<Item = (&mut S, &mut Header)> {
        self.early.retain(|frame| frame.number <= frames);
        self.early.iter_mut().map(|frame| {
            frame.number = 0;
            (&mut frame.slot, &mut frame.header)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::{
        control::seal::Guard,
        data::{frame::Chain, slots::NO_SLOT},
    };

    /// One way of a rail: the frames that were sent on it, of which the first ones have arrived.
    #[derive(Default)]
    struct Fifo {
        sent: VecDeque<usize>,
        arrived: usize,
    }

    impl Fifo {
        fn front(&self) -> Option<usize> {
            self.sent.front().copied().filter(|_| self.arrived > 0)
        }

        fn pop(&mut self) -> Option<usize> {
            self.front()?;
            self.arrived -= 1;
            self.sent.pop_front()
        }

        fn arrive(&mut self, count: usize) {
            self.arrived = (self.arrived + count).min(self.sent.len());
        }
    }

    /// The receiver of one of several rails, and the frames that its peer sends.
    struct RailPlay {
        frames: Vec<(Header, Vec<u8>)>,
        link: Fifo,
        small: Fifo,
        order: FrameOrder<usize>,
        chain: Chain,
        /// The frames that were sent on the link.
        on_link: Vec<usize>,
        /// The number of frames that were taken off the link.
        taken: usize,
        /// The frames of earlier links that have arrived, as the peer knows.
        known: Vec<usize>,
        delivered: usize,
    }

    impl RailPlay {
        /// Seals frames with gaps of these sizes before them, and sends nothing.
        fn new(gaps: &[u64]) -> Self {
            let mut chain = Chain::with_gaps(Guard::of_seed(5));
            let seal = |gap: &u64| {
                let mut payload = b"frame".to_vec();
                let header = chain.seal_at(chain.offset() + gap, NO_SLOT, &mut payload);
                (header, payload)
            };
            Self {
                frames: gaps.iter().map(seal).collect(),
                link: Fifo::default(),
                small: Fifo::default(),
                order: FrameOrder::new(),
                chain: Chain::with_gaps(Guard::of_seed(5)),
                on_link: Vec::new(),
                taken: 0,
                known: Vec::new(),
                delivered: 0,
            }
        }

        /// Sends these frames, each over the way of its turn.
        fn send(&mut self, frames: impl IntoIterator<Item = usize>, small: &[bool]) {
            for frame in frames {
                let is_small = small[frame % small.len()];
                let way = if is_small {
                    &mut self.small
                } else {
                    self.on_link.push(frame);
                    &mut self.link
                };
                way.sent.push_back(frame);
            }
        }

        /// Takes what has arrived, as the receive path does. Each frame that is delivered must be the next one.
        fn receive(&mut self) -> Result<(), &'static str> {
            loop {
                let small = self.small.front().map(|frame| self.frames[frame].0.follows);
                if small == Some(self.order.end()) {
                    let frame = self.small.pop().expect("it is there");
                    self.deliver(frame)?;
                    continue;
                }
                if let Some((frame, _)) = self.order.take_next() {
                    self.deliver(frame)?;
                    continue;
                }
                if small.is_some_and(|small| self.order.check(small).is_err()) {
                    return Err("the order");
                }
                let Some(frame) = self.link.pop() else {
                    return Ok(());
                };
                self.taken += 1;
                let header = self.frames[frame].0;
                if self.order.is_early(&header) {
                    self.order.keep(self.taken as u64, frame, header);
                } else {
                    self.deliver(frame)?;
                }
            }
        }

        fn deliver(&mut self, frame: usize) -> Result<(), &'static str> {
            let (header, mut payload) = self.frames[frame].clone();
            self.order.deliver(&header);
            let opened = self.chain.open(&header, &mut payload);
            opened.map_err(|_| "the chain")?;
            assert_eq!(frame, self.delivered);
            self.delivered += 1;
            Ok(())
        }

        /// Replaces the link and the express path. The peer knows of `known` frames that have arrived over the link, and
        /// sends all others again that were not delivered.
        fn renew(&mut self, known: usize, small: &[bool]) -> Result<(), &'static str> {
            let known = known % (self.on_link.len() + 1);
            self.link.arrived = self.link.arrived.max(known.saturating_sub(self.taken));
            self.receive()?;
            self.order.leave_link(known as u64).for_each(drop);
            (self.link, self.small, self.taken) = (Fifo::default(), Fifo::default(), 0);
            self.known.extend(self.on_link.drain(..).take(known));
            let again = self.delivered..self.frames.len();
            let again: Vec<usize> = again.filter(|frame| !self.known.contains(frame)).collect();
            self.send(again, small);
            Ok(())
        }

        fn receive_all(&mut self) -> Result<(), &'static str> {
            self.link.arrive(usize::MAX / 2);
            self.small.arrive(usize::MAX / 2);
            self.receive()
        }
    }

    prop_compose! {
        fn any_gaps()(gaps in prop::collection::vec(prop_oneof![Just(0), 1..9_u64], 1..40)) -> Vec<u64> {
            gaps
        }
    }

    proptest! {
        /// However the frames of one of several rails arrive over link and express path, and whenever both are replaced,
        /// each frame is delivered once, in order.
        #[test]
        fn the_frames_of_a_rail_are_delivered_in_order(
            gaps in any_gaps(),
            small in prop::collection::vec(any::<bool>(), 1..9),
            acts in prop::collection::vec((0..3_u8, 0..9_usize), 0..40),
        ) {
            let mut play = RailPlay::new(&gaps);
            play.send(0..gaps.len(), &small);
            for (act, count) in acts {
                match act {
                    0 => play.link.arrive(count),
                    1 => play.small.arrive(count),
                    // The express path carries other frames than before.
                    _ => play.renew(count, &small[count % small.len()..]).unwrap(),
                }
                play.receive().unwrap();
            }
            play.receive_all().unwrap();
            prop_assert_eq!(play.delivered, gaps.len());
            prop_assert_eq!(play.order.early(), 0);
        }

        /// No frame is delivered behind one that is missing, and the gap is found as soon as frames of both ways are behind
        /// it, although other rails may carry the bytes that are missing.
        #[test]
        fn a_missing_frame_of_a_rail_is_found(
            gaps in any_gaps(),
            small in prop::collection::vec(any::<bool>(), 1..9),
            missing: prop::sample::Index,
        ) {
            let mut play = RailPlay::new(&gaps);
            let missing = missing.index(gaps.len());
            play.send((0..gaps.len()).filter(|frame| *frame != missing), &small);
            let has_behind = |way: &Fifo| way.sent.iter().any(|frame| *frame > missing);
            let is_visible = has_behind(&play.link) && has_behind(&play.small);
            let received = play.receive_all();
            prop_assert_eq!(play.delivered, missing);
            prop_assert_eq!(received, if is_visible { Err("the order") } else { Ok(()) });
        }
    }

    #[test]
    fn only_a_missed_or_hidden_small_frame_is_out_of_order() {
        let frames = RailPlay::new(&[10, 0, 5]).frames;
        let mut order = FrameOrder::new();
        order.deliver(&frames[0].0);
        let end = order.end();
        for waits in [false, true] {
            if waits {
                order.keep(1, (), frames[2].0);
            }
            assert!(order.check(end - 1).is_err());
            assert!(order.check(end).is_ok());
            assert_eq!(order.check(end + 1).is_err(), waits);
        }
    }
}
