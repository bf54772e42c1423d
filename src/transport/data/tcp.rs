//! The frames over a TCP connection.
//!
//! A stream has one data connection for both directions, beside its control connection. The memory of a slot is heap
//! memory, and a frame for slot n is read into slot n by the receiver. Header and payload leave in one `send(2)` and
//! arrive in one `readv(2)` that also reads the next frame's header, so small frames cost no extra system call.

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    sync::{Arc, Weak},
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
    transport::control::data_watch::{DataProgress, Stall, StalledPath},
};

/// The TCP data path.
pub(crate) struct Tcp;

impl DataPath for Tcp {
    type Send = TcpSend;
    type Receive = TcpReceive;
}

/// The number of slots of the sending pool, besides those that are lent to the user. A slot is free as soon as the
/// kernel has copied it, so two are enough: one is filled while the other is sent. A small pool stays in the
/// processor's cache.
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
    socket: Arc<TcpStream>,
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
}

impl OutgoingFrame {
    fn is_sent(&self) -> bool {
        self.sent == self.frame_bytes
    }
}

impl TcpSend {
    /// Sends chunks of `chunk_bytes` over `socket`, from at most `depth` slots. With a pace, chunks are smaller on a
    /// slow link.
    pub(crate) fn new(
        socket: Arc<TcpStream>,
        chunk_bytes: usize,
        depth: u32,
        progress: Arc<DataProgress>,
        pace: Option<Pace>,
    ) -> Self {
        let free = (0..SEND_SLOTS)
            .map(|_| TcpSlot::new(0, chunk_bytes))
            .collect();
        Self {
            socket,
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
        let _ = SockRef::from(&*self.socket).set_tcp_notsent_lowat(limit.unwrap_or(SYSTEM_DEFAULT));
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

    fn post(&mut self, slot: TcpSlot, frame_bytes: usize, _target: u32) {
        if let Some(pace) = &mut self.pace {
            pace.posted(frame_bytes);
        }
        self.queue.push_back(OutgoingFrame {
            slot,
            frame_bytes,
            sent: 0,
        });
    }

    /// No frame is posted so: every frame needs a credit.
    fn post_small(&mut self, header: &Header, payload: &[u8]) {
        unreachable!("{header:?} of {} bytes without a credit", payload.len());
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Over TCP a frame never needs another target: the connection is never replaced.
    fn poll_complete(
        &mut self,
        cx: &mut Context<'_>,
        _next_credit: impl FnMut() -> Option<u32>,
    ) -> Poll<io::Result<()>> {
        while let Some(front) = self.queue.front_mut() {
            match self
                .socket
                .try_write(&front.slot.memory[front.sent..front.frame_bytes])
            {
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
                    ready!(self.socket.poll_write_ready(cx))?;
                    continue;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if self.queue.front().is_some_and(OutgoingFrame::is_sent) {
                let done = self.queue.pop_front().expect("it was looked at just now");
                self.free.push(done.slot);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The receiving side of the TCP data path.
pub(crate) struct TcpReceive {
    socket: Arc<TcpStream>,
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
    /// Receives chunks of at most `chunk_bytes` into `depth` slots.
    pub(crate) fn new(
        socket: Arc<TcpStream>,
        chunk_bytes: usize,
        depth: u32,
        progress: Arc<DataProgress>,
    ) -> Self {
        let free = (0..depth)
            .map(|index| Some(TcpSlot::new(index, chunk_bytes)))
            .collect();
        Self {
            socket,
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
        let count = match &mut self.arriving {
            None => self.socket.try_read_vectored(&mut [header])?,
            Some(IncomingFrame {
                slot,
                frame_bytes,
                have,
                ..
            }) => {
                let payload = IoSliceMut::new(&mut slot.memory[*have..*frame_bytes]);
                self.socket.try_read_vectored(&mut [payload, header])?
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
                return Poll::Ready(Ok((arrived.slot, arrived.header)));
            }
            match self.read() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_read_ready(cx))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
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
pub(crate) struct TcpArrivals(Vec<Weak<TcpStream>>);

impl TcpArrivals {
    /// Answers for the connections of all rails, and does not keep them open.
    pub(crate) fn new(sockets: Vec<Weak<TcpStream>>) -> Self {
        Self(sockets)
    }
}

impl StalledPath for TcpArrivals {
    /// A stall is a fault if the sockets are empty: then no byte has arrived since the last one was read. A reader that
    /// pauses, or whose thread is blocked, leaves its bytes in the socket.
    fn stalled(&self, stall: Stall) -> Result<(), Fault> {
        let mut sockets = self.0.iter().filter_map(Weak::upgrade).peekable();
        let is_dead = matches!(stall, Stall::Arrivals { .. })
            && sockets.peek().is_some()
            && sockets.all(|socket| is_empty(&socket));
        if is_dead { Err(stall.into()) } else { Ok(()) }
    }
}

/// Returns true if `socket` holds no byte, and is open. The system is asked, because tokio may not have looked for a
/// while.
fn is_empty(socket: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(recv(socket, &mut [0_u8; 1], flags), Err(Errno::AGAIN))
}
