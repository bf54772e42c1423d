//! The frames over a TCP connection.
//!
//! A stream has one data connection for both directions, beside its control connection. The memory of a slot is heap
//! memory, and a frame for slot n is read into slot n by the receiver. Header and payload leave in one `send(2)` and
//! arrive in one `readv(2)` that also reads the next frame's header, so small frames cost no extra system call.
//!
//! # Several networks
//!
//! A rail of a stream over several networks has connections in reserve. Its sender keeps each frame until the slot that
//! the frame was written to is granted again and used for another one: then the frame has been verified and read. When
//! the connection in use is lost, the receiver tells how far it has verified, and the sender sends the frames behind
//! that again over the next connection, byte for byte: header, ciphertext and tag. Which connection is used is in
//! [`connections`](crate::transport::control::state).

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use socket2::SockRef;
use tokio::net::TcpStream;

use super::{
    frame::{HEADER_BYTES, Header},
    pace::Pace,
    slots::{DataPath, ReceivePath, SendPath, Slot, invalid},
};
use crate::{
    Fault,
    transport::control::{
        data_watch::{DataProgress, Stall, StalledPath},
        state::RailState,
    },
};

/// The TCP data path.
pub(crate) struct Tcp;

impl DataPath for Tcp {
    type Send = TcpSend;
    type Receive = TcpReceive;
}

/// The connections of a rail: the first one, and those in reserve on other networks, in the order in which they are
/// used.
pub(crate) struct TcpConnections {
    sockets: Vec<TcpStream>,
    state: RailState,
    /// The number of the connection from which this end reads.
    read: AtomicUsize,
}

impl TcpConnections {
    /// The connections of the rail with this state.
    pub(crate) fn new(sockets: Vec<TcpStream>, state: RailState) -> Self {
        Self {
            sockets,
            state,
            read: AtomicUsize::new(0),
        }
    }

    fn has_reserve(&self) -> bool {
        self.sockets.len() > 1
    }

    /// Records that a connection is lost. Returns false if the rail has no other one left.
    fn lose(&self, connection: usize, error: &io::Error) -> bool {
        let has_other = self.has_reserve() && self.state.lose_connection(connection);
        if has_other {
            tracing::debug!(peer = self.state.peer(), %error, "a rail goes on over another connection");
        }
        has_other
    }
}

/// The number of slots of the sending pool, besides those that are lent to the user and those whose frames are kept. A
/// slot is free as soon as the kernel has copied it, so two are enough: one is filled while the other is sent. A small
/// pool stays in the processor's cache.
const SEND_SLOTS: usize = 2;

/// A slot in heap memory.
pub(crate) struct TcpSlot {
    index: u32,
    /// The part of the memory that is used.
    len: usize,
    memory: Box<[u8]>,
}

impl TcpSlot {
    fn new(index: u32, chunk_bytes: usize) -> Self {
        let len = HEADER_BYTES + chunk_bytes;
        Self {
            index,
            len,
            memory: vec![0; len].into_boxed_slice(),
        }
    }
}

impl Slot for TcpSlot {
    fn index(&self) -> u32 {
        self.index
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

/// The sending side of the TCP data path.
pub(crate) struct TcpSend {
    connections: Arc<TcpConnections>,
    /// The number of the connection that is written to.
    connection: usize,
    /// By slot of the peer: the last frame that was sent to it. Empty if there is no other connection.
    kept: Vec<Option<OutgoingFrame>>,
    chunk_bytes: usize,
    free: Vec<TcpSlot>,
    /// The number of slots so far. More are allocated to be lent, up to `depth`.
    slots: usize,
    depth: usize,
    queue: VecDeque<OutgoingFrame>,
    progress: Arc<DataProgress>,
    /// Limits what is queued, if small messages may follow bulk data.
    pace: Option<Pace>,
}

struct OutgoingFrame {
    slot: TcpSlot,
    frame_bytes: usize,
    sent: usize,
    /// The slot of the peer.
    target: u32,
    /// It is sent again, after its connection was lost.
    is_repeated: bool,
}

impl OutgoingFrame {
    fn is_sent(&self) -> bool {
        self.sent == self.frame_bytes
    }

    /// Returns the number of bytes of the direction before the payload.
    fn offset(&self) -> u64 {
        let header = self.slot.memory.first_chunk().expect("it has a header");
        Header::decode(header).map_or(0, |header| header.offset)
    }
}

impl TcpSend {
    /// Sends chunks of `chunk_bytes` over the first of `connections`, from at most `depth` slots to as many of the peer
    /// as `peer_depth`. With a pace, chunks are smaller on a slow link.
    pub(crate) fn new(
        connections: Arc<TcpConnections>,
        chunk_bytes: usize,
        depth: u32,
        peer_depth: u32,
        progress: Arc<DataProgress>,
        pace: Option<Pace>,
    ) -> Self {
        let free = (0..SEND_SLOTS)
            .map(|_| TcpSlot::new(0, chunk_bytes))
            .collect();
        let most_kept = if connections.has_reserve() {
            peer_depth
        } else {
            0
        };
        Self {
            connections,
            connection: 0,
            kept: (0..most_kept).map(|_| None).collect(),
            chunk_bytes,
            free,
            slots: SEND_SLOTS,
            depth: depth as usize,
            queue: VecDeque::with_capacity(SEND_SLOTS),
            progress,
            pace,
        }
    }

    /// Takes a free slot with room for `room` bytes of payload.
    fn take(&mut self, room: usize) -> Option<TcpSlot> {
        let mut slot = self.free.pop()?;
        slot.len = HEADER_BYTES + room;
        Some(slot)
    }

    /// Has the kernel hold no more bytes that it has not sent than the pace allows.
    fn limit_unsent(&self) {
        let limit = self.pace.as_ref().and_then(Pace::limit);
        let limit = limit.and_then(|limit| u32::try_from(limit).ok());
        // Without the limit small messages are late, and arrive.
        let socket = &self.connections.sockets[self.connection];
        let _ = SockRef::from(socket).set_tcp_notsent_lowat(limit.unwrap_or(SYSTEM_DEFAULT));
    }

    /// Goes on over the connection that the rail uses now. Returns false until the peer has told how far it has verified.
    fn follow(&mut self) -> bool {
        if !self.connections.has_reserve() {
            return true;
        }
        let state = &self.connections.state;
        let connection = state.connection();
        if connection == self.connection {
            return true;
        }
        let Some(verified) = state.verified_before(connection) else {
            return false;
        };
        self.connection = connection;
        self.send_again(verified);
        true
    }

    /// Queues the frames again that the peer has not verified: those from this offset on.
    fn send_again(&mut self, verified: u64) {
        let is_lost = |frame: &mut OutgoingFrame| frame.offset() >= verified;
        let kept = self.kept.iter_mut();
        let lost = kept.filter_map(|kept| kept.take_if(is_lost));
        let mut lost: Vec<_> = lost
            .map(|frame| OutgoingFrame {
                is_repeated: true,
                ..frame
            })
            .collect();
        lost.sort_by_key(OutgoingFrame::offset);
        lost.extend(self.queue.drain(..));
        for frame in &mut lost {
            let sent = mem::take(&mut frame.sent);
            self.progress.take_back_sent(sent as u64);
        }
        self.queue = lost.into();
        if self.pace.is_some() {
            self.limit_unsent();
        }
    }

    /// Keeps a frame that was sent, and returns the slot that is free in its place.
    fn keep(&mut self, sent: OutgoingFrame) -> Option<TcpSlot> {
        let is_repeated = sent.is_repeated;
        let Some(kept) = self.kept.get_mut(sent.target as usize) else {
            return Some(sent.slot);
        };
        match kept.replace(sent) {
            Some(verified) => Some(verified.slot),
            None if is_repeated => None,
            None => Some(TcpSlot::new(0, self.chunk_bytes)),
        }
    }
}

/// The limit of unsent bytes that stands for the one of the system, which has none unless it was configured.
const SYSTEM_DEFAULT: u32 = 0;

impl SendPath for TcpSend {
    type Slot = TcpSlot;

    fn acquire(&mut self) -> Option<TcpSlot> {
        self.take(self.chunk_bytes)
    }

    fn acquire_to_fill(&mut self, credits: impl FnOnce() -> usize) -> Option<TcpSlot> {
        let pace = self.pace.as_mut();
        let room = pace.map_or(self.chunk_bytes, |pace| pace.room(credits));
        self.take(room)
    }

    /// Allocates a slot if writes need the free ones, so that lent slots do not slow writes down.
    fn acquire_to_lend(&mut self) -> Option<TcpSlot> {
        if self.slots < self.depth && self.free.len() <= 1 {
            self.slots += 1;
            return Some(TcpSlot::new(0, self.chunk_bytes));
        }
        self.acquire()
    }

    fn release(&mut self, slot: TcpSlot) {
        self.free.push(slot);
    }

    fn max_slots(&self) -> usize {
        self.depth
    }

    fn post(&mut self, slot: TcpSlot, frame_bytes: usize, target: u32) {
        if let Some(pace) = &mut self.pace {
            pace.posted(frame_bytes);
        }
        self.queue.push_back(OutgoingFrame {
            slot,
            frame_bytes,
            sent: 0,
            target,
            is_repeated: false,
        });
    }

    /// No frame is posted so: every frame needs a credit.
    fn post_small(&mut self, header: &Header, payload: &[u8]) {
        unreachable!("{header:?} of {} bytes without a credit", payload.len());
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Over TCP a frame never needs another target: the slots stay where a connection is replaced.
    fn poll_complete(
        &mut self,
        cx: &mut Context<'_>,
        _next_credit: impl FnMut() -> Option<u32>,
    ) -> Poll<io::Result<()>> {
        if !self.follow() {
            return Poll::Pending;
        }
        while let Some(front) = self.queue.front_mut() {
            let socket = &self.connections.sockets[self.connection];
            match socket.try_write(&front.slot.memory[front.sent..front.frame_bytes]) {
                Ok(count) => {
                    front.sent += count;
                    self.progress.add_sent(count as u64);
                    let pace = self.pace.as_mut();
                    if pace.is_some_and(|pace| pace.accepted(count, Instant::now())) {
                        self.limit_unsent();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let pace = self.pace.as_mut();
                    if pace.is_some_and(|pace| pace.blocked(Instant::now())) {
                        self.limit_unsent();
                    }
                    ready!(self.connections.sockets[self.connection].poll_write_ready(cx))?;
                    continue;
                }
                // The move of the peer wakes the task.
                Err(error) if self.connections.lose(self.connection, &error) => {
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if self.queue.front().is_some_and(OutgoingFrame::is_sent) {
                let done = self.queue.pop_front().expect("it was looked at just now");
                let free = self.keep(done);
                self.free.extend(free);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The receiving side of the TCP data path.
pub(crate) struct TcpReceive {
    connections: Arc<TcpConnections>,
    /// The number of the connection that is read.
    connection: usize,
    /// The end of the last whole frame, which was verified when it arrived.
    verified: u64,
    chunk_bytes: usize,
    /// By number: the slots that neither a frame nor a reader holds.
    free: Vec<Option<TcpSlot>>,
    header: [u8; HEADER_BYTES],
    header_have: usize,
    arriving: Option<IncomingFrame>,
    progress: Arc<DataProgress>,
}

struct IncomingFrame {
    slot: TcpSlot,
    header: Header,
    frame_bytes: usize,
    have: usize,
}

impl TcpReceive {
    /// Receives chunks of at most `chunk_bytes` into `depth` slots, over the first of `connections`.
    pub(crate) fn new(
        connections: Arc<TcpConnections>,
        chunk_bytes: usize,
        depth: u32,
        progress: Arc<DataProgress>,
    ) -> Self {
        let free = (0..depth)
            .map(|index| Some(TcpSlot::new(index, chunk_bytes)))
            .collect();
        Self {
            connections,
            connection: 0,
            verified: 0,
            chunk_bytes,
            free,
            header: [0; HEADER_BYTES],
            header_have: 0,
            arriving: None,
            progress,
        }
    }

    /// Takes the slot that the complete header names.
    fn begin(&mut self) -> io::Result<()> {
        let header = Header::decode(&self.header).map_err(|damage| invalid(damage.text()))?;
        if header.length == 0 || header.length as usize > self.chunk_bytes {
            return Err(invalid("a chunk of a size that was not agreed on"));
        }
        let place = self.free.get_mut(header.slot as usize);
        let slot = place
            .and_then(Option::take)
            .ok_or_else(|| invalid("a chunk for a slot that was not granted"))?;
        self.header_have = 0;
        self.arriving = Some(IncomingFrame {
            slot,
            header,
            frame_bytes: header.frame_bytes(),
            have: HEADER_BYTES,
        });
        Ok(())
    }

    /// Reads once, into the rest of the frame that is arriving and the header of the next frame.
    fn read(&mut self) -> io::Result<usize> {
        let header = IoSliceMut::new(&mut self.header[self.header_have..]);
        let socket = &self.connections.sockets[self.connection];
        let count = match &mut self.arriving {
            None => socket.try_read_vectored(&mut [header])?,
            Some(IncomingFrame {
                slot,
                frame_bytes,
                have,
                ..
            }) => {
                let payload = IoSliceMut::new(&mut slot.memory[*have..*frame_bytes]);
                socket.try_read_vectored(&mut [payload, header])?
            }
        };
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "closed by the other end",
            ));
        }
        self.progress.add_received(count as u64);
        let into_payload = self
            .arriving
            .as_ref()
            .map_or(0, |a| count.min(a.frame_bytes - a.have));
        if let Some(arriving) = &mut self.arriving {
            arriving.have += into_payload;
        }
        self.header_have += count - into_payload;
        Ok(count)
    }
}

impl ReceivePath for TcpReceive {
    type Slot = TcpSlot;

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpSlot, Header)>> {
        loop {
            if self.arriving.is_none() && self.header_have == HEADER_BYTES {
                self.begin()?;
            }
            if self
                .arriving
                .as_ref()
                .is_some_and(|a| a.have == a.frame_bytes)
            {
                let arrived = self.arriving.take().expect("it was looked at just now");
                self.verified = arrived.header.end();
                return Poll::Ready(Ok((arrived.slot, arrived.header)));
            }
            match self.read() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.connections.sockets[self.connection].poll_read_ready(cx))?;
                }
                Err(error) if self.connections.lose(self.connection, &error) => self.follow(),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Drops the frame of which a part has arrived: it is sent again.
    fn follow(&mut self) {
        if !self.connections.has_reserve() {
            return;
        }
        let connection = self.connections.state.connection();
        if connection == self.connection {
            return;
        }
        let mut dropped = mem::take(&mut self.header_have);
        if let Some(IncomingFrame { slot, have, .. }) = self.arriving.take() {
            dropped += have;
            self.release(slot);
        }
        self.progress.take_back_received(dropped as u64);
        self.connection = connection;
        self.connections.read.store(connection, Relaxed);
        self.connections.state.tell_moved(connection, self.verified);
    }

    fn arriving_end(&self) -> u64 {
        self.arriving.as_ref().map_or(0, |frame| frame.header.end())
    }

    fn release(&mut self, slot: TcpSlot) -> bool {
        let place = slot.index as usize;
        self.free[place] = Some(slot);
        true
    }

    fn can_grant(&self) -> bool {
        true
    }

    /// Does nothing: over TCP the header of a frame names its slot.
    fn post_receive(&mut self, _index: u32) {}
}

/// The data connections, as the watch over the data path asks them about bytes that do not arrive.
pub(crate) struct TcpArrivals(Vec<Weak<TcpConnections>>);

impl TcpArrivals {
    /// Answers for the connections of all rails, and does not keep them open.
    pub(crate) fn new(rails: Vec<Weak<TcpConnections>>) -> Self {
        Self(rails)
    }
}

impl StalledPath for TcpArrivals {
    /// A stall is a fault if the sockets are empty: then no byte has arrived since the last one was read. A reader that
    /// pauses, or whose thread is blocked, leaves its bytes in the socket.
    fn stalled(&self, stall: Stall) -> Result<(), Fault> {
        let mut rails = self.0.iter().filter_map(Weak::upgrade).peekable();
        let is_dead = matches!(stall, Stall::Arrivals { .. })
            && rails.peek().is_some()
            && rails.all(|rail| is_empty(&rail.sockets[rail.read.load(Relaxed)]));
        if is_dead { Err(stall.into()) } else { Ok(()) }
    }
}

/// Returns true if `socket` holds no byte, and is open. The system is asked, because tokio may not have looked for a
/// while.
fn is_empty(socket: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(recv(socket, &mut [0_u8; 1], flags), Err(Errno::AGAIN))
}
