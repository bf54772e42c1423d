//! The sending half of a stream: what its user writes becomes chunks in slots, and each chunk a frame.
//!
//! A half belongs to one user. Each call moves the data of the frame sender as far as it goes, so that no task stands
//! between the user and the data path; while the user does not call, the steward does.

use std::{
    io::{self, IoSlice},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use super::{
    frame_sender::SharedSender,
    slots::{DataPath, FillSlots, FillingSlot, LentSlot, SendPath},
    steward::{Attendance, Shared},
};
use crate::{Error, faults, transport::control::state::RailState};

/// The sending half of a stream over one kind of data path.
pub(crate) struct SendHalf<D: DataPath> {
    shared: Arc<Shared<D>>,
    /// The slot that [`FillSlots`] has lent. The steward does not see it.
    lent: Option<FillingSlot<<D::Send as SendPath>::Slot>>,
}

impl<D: DataPath> SendHalf<D> {
    /// Returns the one sending half of `shared`.
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Self {
        Self { shared, lent: None }
    }

    fn state(&self) -> &RailState {
        &self.shared.state
    }

    fn sender(&self) -> Result<&SharedSender<D::Send>, Error> {
        self.shared
            .sender
            .as_ref()
            .ok_or(Error::Misuse("this stream only receives"))
    }

    /// Gives the slot that was lent back to the frame sender, where the steward and `poll_posted` find it.
    fn give_back(&mut self) {
        let Some(filling) = self.lent.take() else {
            return;
        };
        let Some(sender) = &self.shared.sender else {
            return;
        };
        sender.lock().give_back(filling);
    }

    /// Posts everything written so far. Ready when the data path has all of it: as over TCP, it may still be on its
    /// way. To wait for its completion would let a peer's answer overtake it: hyper takes an end of file that it reads
    /// while its flush is pending for a client that broke off.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self.poll_sent(cx) {
            Poll::Pending if self.is_all_posted() => Poll::Ready(Ok(())),
            sent => sent,
        }
    }

    /// Posts everything written so far. Ready when the data path has sent it.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let Ok(sender) = self.sender() else {
            return Poll::Ready(Ok(()));
        };
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error));
        }
        sender.lock().poll_posted(state, cx, true)
    }

    /// Sends FIN after the last byte. Ready when the peer's endpoint has acknowledged it.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Poll::Ready(Ok(())) = self.state().poll_acked(cx) {
            return Poll::Ready(Ok(()));
        }
        if self.is_all_taken() {
            return Poll::Ready(Ok(()));
        }
        // The steward sends FIN after the last byte that it sees, and does not see the slot that is lent.
        self.give_back();
        self.state().begin_shutdown();
        ready!(self.poll_sent(cx))?;
        let sender = self.sender()?;
        sender.lock().finish(self.state());
        self.state().poll_acked(cx)
    }

    /// Returns true if the peer's reader has stopped, and had taken every byte that was written.
    fn is_all_taken(&self) -> bool {
        let (Some(taken), Some(sender)) = (self.state().stopped_after(), &self.shared.sender)
        else {
            return false;
        };
        let is_all_posted = sender.lock().is_all_posted(self.state());
        self.lent.is_none() && is_all_posted && self.state().stats().bytes_sent <= taken
    }

    fn is_all_posted(&self) -> bool {
        let sender = self.shared.sender.as_ref();
        sender.is_some_and(|sender| sender.lock().is_all_posted(self.state()))
    }

    /// Shuts down. Ready when the peer's sink has confirmed every byte.
    pub(crate) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_shutdown(cx))?;
        faults::point("before-confirmation-received");
        self.state().poll_confirmed(cx)
    }

    /// Copies as much of `parts` as fits into the chunk being filled.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let state = self.state();
        let mut sender = self.sender()?.lock();
        let mut filling = ready!(sender.poll_room(state, cx))?;
        let count = filling.copy(parts);
        sender.give_back(filling);
        let _ = sender.poll_posted(state, cx, false)?;
        Poll::Ready(Ok(count))
    }

    /// Lends an empty slot to the user.
    pub(crate) fn poll_lent(&mut self, cx: &mut Context<'_>) -> Poll<Result<LentSlot<D>, Error>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let state = self.state();
        let filling = ready!(self.sender()?.lock().poll_lent(state, cx))?;
        Poll::Ready(Ok(LentSlot::new(filling, &self.shared)))
    }

    /// Queues a slot that the user filled, and posts it if possible. Otherwise the steward or the user's next call
    /// posts it.
    pub(crate) fn send(&mut self, lent: LentSlot<D>) -> Result<(), Error> {
        self.give_back();
        let _attended = self.shared.attend_send();
        self.state().writable()?;
        let filling = lent.into_filling(&self.shared).ok_or(FOREIGN_BUFFER)?;
        let mut sender = self.sender()?.lock();
        sender.seal(self.state(), filling);
        let mut cx = Context::from_waker(Waker::noop());
        match sender.poll_posted(self.state(), &mut cx, false) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }
}

/// What one of several rails does while its user says where the bytes of each chunk belong.
#[cfg(feature = "cli")]
impl<D: DataPath> SendHalf<D> {
    /// Ends the chunk that is being filled, and returns the number of bytes up to its end.
    pub(crate) fn begin_placed(&mut self) -> Result<u64, Error> {
        self.give_back();
        Ok(self.sender()?.lock().begin_placed(self.state()))
    }

    /// Continues in order after `bytes` bytes.
    pub(crate) fn end_placed(&mut self, bytes: u64) {
        self.give_back();
        if let Some(sender) = &self.shared.sender {
            sender.lock().end_placed(bytes);
        }
    }

    /// Queues what the slot of [`poll_slot`](FillSlots::poll_slot) holds as the chunk at `offset`, and posts it as far
    /// as that goes at once.
    pub(crate) fn post_at(&mut self, offset: u64, cx: &mut Context<'_>) -> Result<(), Error> {
        let _attended = self.shared.attend_send();
        let Some(mut filling) = self.lent.take() else {
            return Ok(());
        };
        filling.set_offset(offset);
        let mut sender = self.sender()?.lock();
        sender.seal_placed(self.state(), filling);
        match sender.poll_posted(self.state(), cx, false) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }
}

/// The error for a buffer that another stream has lent.
pub(crate) const FOREIGN_BUFFER: Error = Error::Misuse("this buffer belongs to another stream");

impl<D: DataPath> FillSlots for SendHalf<D> {
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>> {
        if self.lent.as_ref().is_none_or(FillingSlot::is_full) {
            self.give_back();
            let _attended = self.shared.attend_send();
            let state = self.state();
            let filling = ready!(self.sender()?.lock().poll_room(state, cx))?;
            self.lent = Some(filling);
        }
        let filling = self.lent.as_mut().expect("it was put there just now");
        Poll::Ready(Ok(filling.room()))
    }

    fn advance(&mut self, count: usize) {
        if let Some(filling) = &mut self.lent {
            filling.fill(count);
        }
    }

    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.give_back();
        let _attended = self.shared.attend_send();
        let state = self.state();
        state.wait_to_send(cx);
        if let Some(error) = state.send_error() {
            return Poll::Ready(Err(error.into()));
        }
        self.sender()?
            .lock()
            .poll_posted(state, cx, false)
            .map_err(Into::into)
    }
}

impl<D: DataPath> Drop for SendHalf<D> {
    fn drop(&mut self) {
        self.give_back();
        self.shared.state.release_sender(self.is_all_posted());
    }
}

impl<D: DataPath> Shared<D> {
    /// Begins a poll of the sending half by its user. It is counted when the returned value is dropped.
    fn attend_send(&self) -> Option<Attendance<'_>> {
        let sender = self.sender.as_ref()?;
        Some(Attendance::new(&sender.polls, &self.attended))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::MutexGuard, thread};

    use futures::task::AtomicWaker;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Direction,
        transport::{
            control::{
                message::Message,
                noise::Role,
                seal::{Cipher, Guard, StreamSeal, Way},
                state::State,
            },
            data::{
                frame::{Chain, HEADER_BYTES, Header},
                frame_sender::{FrameSender, SendPart},
                handover::SendHandover,
                slots::{NO_SLOT, SendPath, Slot, SmallFrame},
                tcp::TcpReceive,
            },
        },
    };

    /// A slot in heap memory.
    struct Memory(Box<[u8]>);

    impl Slot for Memory {
        fn index(&self) -> u32 {
            0
        }

        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    /// A path that always has a slot.
    struct Free;

    impl SendPath for Free {
        type Slot = Memory;

        fn acquire(&mut self) -> Option<Memory> {
            Some(Memory(vec![0; HEADER_BYTES + 8192].into()))
        }

        fn acquire_to_lend(&mut self) -> Option<Memory> {
            self.acquire()
        }

        fn release(&mut self, _slot: Memory) {}

        fn post(&mut self, _slot: Memory, _frame_bytes: usize, _target: u32) {}

        fn post_small(&mut self, _header: &Header, _payload: &[u8]) {}

        fn max_slots(&self) -> usize {
            2
        }

        fn in_flight(&self) -> usize {
            0
        }

        fn poll_complete(
            &mut self,
            _cx: &mut Context<'_>,
            _next_credit: impl FnMut() -> Option<u32>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    struct FreePath;

    impl DataPath for FreePath {
        type Send = Free;
        type Receive = TcpReceive;
    }

    /// The end is not due while bytes are in a slot that the steward does not see: it would send FIN in front of them.
    #[test]
    fn the_end_is_due_only_when_the_steward_sees_the_last_bytes() {
        let state = RailState::new(&State::new("hostB".to_owned(), Direction::Send, 2), 0);
        let shared: Arc<Shared<FreePath>> = Arc::new(Shared {
            state,
            sender: Some(SharedSender::new(
                Free,
                Chain::new(Guard::of_seed(7)),
                SendPart::Only,
                faults::Faults::default(),
            )),
            receiver: None,
            attended: AtomicWaker::new(),
        });
        let mut half = SendHalf::new(Arc::clone(&shared));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(half.poll_slot(&mut cx).is_ready());
        half.advance(5);
        let sender = shared.sender.as_ref().unwrap();
        thread::scope(|scope| {
            let held = sender.lock();
            scope.spawn(|| {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(half.poll_shutdown(&mut cx).is_pending());
            });
            for _ in 0..10_000 {
                assert!(!shared.state.is_fin_due(), "the steward would send FIN");
                thread::yield_now();
            }
            drop(held);
        });
        assert!(shared.state.is_fin_due());
        assert!(
            !sender.lock().is_all_posted(&shared.state),
            "without a credit"
        );
    }

    /// The payload of a slot of [`Recording`].
    const CHUNK_BYTES: usize = 24;

    /// The number of slots of the sending pool, and of the peer's.
    const SLOTS: usize = 4;

    /// A path that keeps every frame which it is given, and makes progress as a test says.
    struct Recording {
        given: Vec<(Header, Vec<u8>)>,
        free: usize,
        in_flight: usize,
        /// The peer's slots of the frames that have arrived: they can be granted again.
        read: Vec<u32>,
        /// The number of small frames for which there is room; none if small frames need a credit.
        small: Option<usize>,
    }

    impl SendPath for Recording {
        type Slot = Memory;

        fn acquire(&mut self) -> Option<Memory> {
            self.free = self.free.checked_sub(1)?;
            Some(Memory(vec![0; HEADER_BYTES + CHUNK_BYTES].into()))
        }

        fn acquire_to_lend(&mut self) -> Option<Memory> {
            self.acquire()
        }

        fn release(&mut self, _slot: Memory) {
            self.free += 1;
        }

        fn post(&mut self, slot: Memory, frame_bytes: usize, target: u32) {
            let header = slot.bytes().first_chunk().expect("a header");
            let header = Header::decode(header).expect("a whole header");
            assert_eq!((header.slot, header.frame_bytes()), (target, frame_bytes));
            let payload = slot.payload(header.length as usize).to_vec();
            self.given.push((header, payload));
            self.read.push(target);
            self.in_flight += 1;
        }

        fn post_small(&mut self, header: &Header, payload: &[u8]) {
            assert_eq!(header.slot, NO_SLOT);
            self.given.push((*header, payload.to_vec()));
            self.small = self.small.map(|room| room - 1);
        }

        fn small_frame(&mut self, length: usize) -> SmallFrame {
            match self.small {
                Some(_) if length > 2 * CHUNK_BYTES / 3 => SmallFrame::NeedsCredit,
                Some(0) => SmallFrame::Later,
                Some(_) => SmallFrame::WithoutCredit { max_bytes: 5 },
                None => SmallFrame::NeedsCredit,
            }
        }

        fn max_slots(&self) -> usize {
            SLOTS
        }

        fn in_flight(&self) -> usize {
            self.in_flight
        }

        fn poll_complete(
            &mut self,
            _cx: &mut Context<'_>,
            _next_credit: impl FnMut() -> Option<u32>,
        ) -> Poll<io::Result<()>> {
            if self.in_flight == 0 {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        }
    }

    struct RecordingPath;

    impl DataPath for RecordingPath {
        type Send = Recording;
        type Receive = TcpReceive;
    }

    /// The sending half of a stream over [`Recording`], what was written to it, and the second rail of two.
    struct Recorded {
        half: SendHalf<RecordingPath>,
        lent: Vec<LentSlot<RecordingPath>>,
        written: Vec<u8>,
        other: Option<OtherRail>,
    }

    /// A rail that sends what it is handed at once.
    struct OtherRail {
        state: RailState,
        handover: Arc<SendHandover<Memory>>,
        /// The chunks that it has sent, with their offsets.
        sent: Vec<(u64, Vec<u8>)>,
    }

    impl OtherRail {
        fn new(state: &Arc<State>) -> Self {
            let handover = SendHandover::new();
            for _ in 0..2 {
                handover.put_empty(Memory(vec![0; HEADER_BYTES + CHUNK_BYTES].into()));
            }
            Self {
                state: RailState::new(state, 1),
                handover,
                sent: Vec::new(),
            }
        }

        fn drive(&mut self) {
            for chunk in self.handover.take_filled() {
                let offset = chunk.offset().expect("it has a place");
                self.sent.push((offset, chunk.data().to_vec()));
                self.state.count_posted();
                self.handover.put_empty(chunk.slot);
            }
        }
    }

    impl Recorded {
        fn new(cipher: Option<Cipher>, rails: usize) -> Self {
            let state = State::with_rails("hostB".to_owned(), Direction::Send, 2, rails);
            let other = (rails > 1).then(|| OtherRail::new(&state));
            let others = other.iter().map(|other| Arc::clone(&other.handover));
            let part = SendPart::first(others.collect());
            let state = RailState::new(&state, 0);
            state.set_peer_slots(SLOTS);
            let path = Recording {
                given: Vec::new(),
                free: SLOTS,
                in_flight: 0,
                read: (0..).take(SLOTS).collect(),
                small: None,
            };
            let guard = StreamSeal::of_seed(7, Role::Dialer, cipher).guard(Way::Out);
            let sender =
                SharedSender::new(path, chain(guard, rails), part, faults::Faults::default());
            let half = SendHalf::new(Arc::new(Shared {
                state,
                sender: Some(sender),
                receiver: None,
                attended: AtomicWaker::new(),
            }));
            Self {
                half,
                lent: Vec::new(),
                written: Vec::new(),
                other,
            }
        }

        fn sender(&self) -> MutexGuard<'_, FrameSender<Recording>> {
            self.half.sender().expect("it sends").lock()
        }

        /// Does one of the things that a user, the steward, the network or the peer does. `count` says how much.
        fn act(&mut self, act: u8, count: usize) {
            let mut cx = Context::from_waker(Waker::noop());
            let next = |written: &Vec<u8>, count| {
                let bytes = written.len()..written.len() + count;
                bytes.map(|at| at.to_le_bytes()[0]).collect::<Vec<_>>()
            };
            match act {
                0 => {
                    let bytes = next(&self.written, count + 1);
                    let parts = [IoSlice::new(&bytes)];
                    if let Poll::Ready(written) = self.half.poll_write(&mut cx, &parts) {
                        self.written.extend(&bytes[..written.unwrap()]);
                    }
                }
                1 => {
                    if let Poll::Ready(room) = self.half.poll_slot(&mut cx) {
                        let room = room.unwrap();
                        let bytes = next(&self.written, count.min(room.len()));
                        room[..bytes.len()].copy_from_slice(&bytes);
                        self.half.advance(bytes.len());
                        self.written.extend(&bytes);
                    }
                }
                2 => drop(self.half.post(&mut cx)),
                3 => drop(self.half.poll_flush(&mut cx)),
                4 => {
                    if let Poll::Ready(lent) = self.half.poll_lent(&mut cx) {
                        self.lent.push(lent.unwrap());
                    }
                }
                5 => {
                    if let Some(mut lent) = self.lent.pop() {
                        let bytes = next(&self.written, count);
                        let filling = lent.filling_mut();
                        filling.room()[..count].copy_from_slice(&bytes);
                        filling.fill(count);
                        self.half.send(lent).unwrap();
                        self.written.extend(&bytes);
                    }
                }
                6 => drop(self.lent.pop()),
                7 => self.steward(),
                8 => self.grant(count),
                9 => self.complete(count),
                10 => self.other.iter_mut().for_each(OtherRail::drive),
                11 => self.place(count),
                _ => self.sender().path.small = count.checked_sub(10),
            }
        }

        /// Carries a file: the second rail claims its first bytes, and the first rail those that follow.
        #[cfg(feature = "cli")]
        fn place(&mut self, count: usize) {
            let Some(other) = &mut self.other else { return };
            let mut cx = Context::from_waker(Waker::noop());
            let mut next = self.half.begin_placed().unwrap();
            assert_eq!(next, self.written.len() as u64);
            let bytes = vec![0xf1; count];
            other.sent.push((next, bytes.clone()));
            self.written.extend(bytes);
            next += count as u64;
            if let Poll::Ready(room) = self.half.poll_slot(&mut cx) {
                let room = room.unwrap();
                let count = (count / 2 + 1).min(room.len());
                room[..count].fill(0xf2);
                self.half.advance(count);
                self.half.post_at(next, &mut cx).unwrap();
                self.written.extend(vec![0xf2; count]);
                next += count as u64;
            }
            self.half.end_placed(next);
        }

        #[cfg(not(feature = "cli"))]
        fn place(&mut self, _count: usize) {}

        fn steward(&self) {
            let mut cx = Context::from_waker(Waker::noop());
            let sender = self.half.shared.sender.as_ref().expect("it sends");
            sender.drive_unattended(&self.half.shared.state, &mut cx);
        }

        /// The peer grants the slots that it has read, as many as these.
        fn grant(&self, count: usize) {
            let mut sender = self.sender();
            let count = count.min(sender.path.read.len());
            let slots = sender.path.read.drain(..count).collect();
            self.half.shared.state.receive(Message::Credit(slots));
        }

        /// Frames in flight, as many as these, have been sent.
        fn complete(&self, count: usize) {
            let mut sender = self.sender();
            let count = count.min(sender.path.in_flight);
            sender.path.in_flight -= count;
            sender.path.free += count;
        }

        /// Sends everything that was written.
        fn end(&mut self) {
            self.lent.clear();
            self.sender().path.small = None;
            for _ in 0..2 * self.written.len() + 10 {
                self.act(8, SLOTS);
                self.act(9, SLOTS);
                self.act(3, 0);
                self.act(10, 0);
            }
        }
    }

    fn chain(guard: Guard, rails: usize) -> Chain {
        if rails > 1 {
            Chain::with_gaps(guard)
        } else {
            Chain::new(guard)
        }
    }

    proptest! {
        /// Whatever the user, the steward, the network and the peer do, with one rail or two, every offset is sent once,
        /// and what the path is given opens in order: no offset is sealed twice, and no sealed byte is changed, split or
        /// joined.
        #[test]
        fn every_offset_is_sealed_once(rails in 1..3_usize, acts in prop::collection::vec((0..13_u8, 0..CHUNK_BYTES), 0..300)) {
            for cipher in [None, Some(Cipher::Aes256Gcm), Some(Cipher::ChaCha20Poly1305)] {
                let mut recorded = Recorded::new(cipher, rails);
                for (act, count) in &acts {
                    recorded.act(*act, *count);
                }
                recorded.end();
                let given = std::mem::take(&mut recorded.sender().path.given);
                let guard = StreamSeal::of_seed(7, Role::Acceptor, cipher).guard(Way::In);
                let mut there = chain(guard, rails);
                let mut sent = recorded.other.take().map_or(Vec::new(), |other| other.sent);
                for (header, mut payload) in given {
                    prop_assert_eq!(there.open(&header, &mut payload), Ok(()));
                    sent.push((header.offset, payload));
                }
                sent.sort_by_key(|(offset, _)| *offset);
                let mut all = Vec::new();
                for (offset, payload) in sent {
                    prop_assert_eq!(offset, all.len() as u64);
                    all.extend(payload);
                }
                prop_assert_eq!(&all, &recorded.written);
                prop_assert_eq!(there.digest(), recorded.sender().chain.digest());
            }
        }
    }
}
