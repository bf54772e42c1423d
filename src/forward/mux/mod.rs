//! Many connections over one stream: [`frame`]s, [`window`]s, and the state of all connections of one end. Pure, no
//! I/O.
//!
//! The state holds no bytes of connections. What is sent goes from a socket straight into the stream, as much as the
//! peer accepts; what is received and cannot be written to a socket at once is held by the program, and never exceeds
//! the window that this end granted.

pub(crate) mod frame;
#[cfg(test)]
mod tests;
mod window;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use self::{
    frame::{FRAME_HEADER_BYTES, FlowId, FrameHead, FrameKind, FramePiece, MAX_CONTROL_BYTES},
    window::{Flow, FlowSending},
};
pub(crate) use window::WindowBudget;

/// The reason why the peer's frames are not those of this protocol. The tunnel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MuxFault {
    /// No frame has this kind.
    #[error("the tunnel received a frame of the unknown kind {0}")]
    Kind(u8),
    /// The header of a frame is invalid.
    #[error("the tunnel received an invalid frame")]
    Header,
    /// The peer opened a connection with a number that it may not use.
    #[error("the tunnel received a connection with a wrong number")]
    Number,
    /// The frame does not fit the state of its connection.
    #[error("the tunnel received a frame that its connection does not expect")]
    Unexpected,
    /// The peer sent more than it may.
    #[error("the tunnel received more bytes of a connection than it accepts")]
    BeyondWindow,
}

/// Which numbers an end gives to the connections that it opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MuxEnd {
    Odd,
    Even,
}

/// What a frame of the peer means for the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MuxEvent<'a> {
    /// Nothing.
    None,
    /// A message of the tunnel itself.
    Message(Vec<u8>),
    /// The peer asks for a connection. The program answers with [`Mux::accept`] or [`Mux::refuse`].
    Open(FlowId, Vec<u8>),
    /// The peer has made the connection.
    Opened(FlowId),
    /// The peer cannot make the connection, which has ended.
    Refused(FlowId, Vec<u8>),
    /// Bytes of a connection. The program reports with [`Mux::consume`] when its socket has taken them.
    Data(FlowId, &'a [u8]),
    /// The peer sends no more bytes of a connection.
    Fin(FlowId),
    /// The peer has reset a connection. It has ended, unless bytes wait that the peer sent before: then it ends when
    /// they are [consumed](Mux::consume).
    Reset(FlowId),
    /// Bytes of a connection may be sent, after none could be.
    Writable(FlowId),
}

/// All connections of one stream, at one end of a tunnel.
#[derive(Debug)]
pub(crate) struct Mux {
    flows: HashMap<FlowId, Flow>,
    budget: Arc<WindowBudget>,
    /// The number of the next connection of this end; none are left at the end of the numbers.
    next: Option<FlowId>,
    /// The peer's first number that was not used.
    peer_next: u64,
    /// The connections with frames to send, each once.
    due: VecDeque<FlowId>,
    messages: VecDeque<Vec<u8>>,
    /// The numbers of the peer's connections that are refused because there is no memory for them.
    full: VecDeque<FlowId>,
}

/// The most connections that wait to be refused because there is no memory. A peer that asks for more before the
/// answers have left is not one of ours.
const MOST_FULL: usize = 1 << 16;

impl Mux {
    /// Returns one end of a stream without connections. `budget` is that of its end of the tunnel.
    pub(crate) fn new(end: MuxEnd, budget: &Arc<WindowBudget>) -> Self {
        let (own, peer) = match end {
            MuxEnd::Odd => (1, 2),
            MuxEnd::Even => (2, 1),
        };
        Self {
            flows: HashMap::new(),
            budget: Arc::clone(budget),
            next: Some(own),
            peer_next: peer,
            due: VecDeque::new(),
            messages: VecDeque::new(),
            full: VecDeque::new(),
        }
    }

    /// Returns the number of connections, those that are being opened included.
    pub(crate) fn count(&self) -> usize {
        self.flows.len()
    }

    /// Returns true if the connection has not ended. A connection that the peer has reset ends when its bytes are
    /// consumed.
    pub(crate) fn is_live(&self, id: FlowId) -> bool {
        self.flows
            .get(&id)
            .is_some_and(|flow| !flow.due.reset && flow.due.refused.is_none())
    }

    /// Returns true if the peer has ended its direction of every connection.
    pub(crate) fn is_all_received(&self) -> bool {
        self.flows.values().all(|flow| flow.has_received_fin)
    }

    /// Queues a message for the other end, of at most [`MAX_CONTROL_BYTES`].
    pub(crate) fn send_message(&mut self, message: Vec<u8>) {
        debug_assert!(message.len() <= MAX_CONTROL_BYTES);
        self.messages.push_back(message);
    }

    /// Begins a connection to `target`, of at most [`MAX_CONTROL_BYTES`] less 4. Returns none if no memory is left for
    /// another connection.
    pub(crate) fn open(&mut self, target: Vec<u8>) -> Option<FlowId> {
        let id = self.next?;
        let window = self.budget.new_window()?;
        self.next = id.checked_add(2);
        let mut flow = Flow::new(window, 0);
        flow.due.open = Some(target);
        self.flows.insert(id, flow);
        self.queue(id);
        Some(id)
    }

    /// Answers the peer that its connection is made.
    pub(crate) fn accept(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.sending = FlowSending::Open;
            flow.due.opened = true;
            self.queue(id);
        }
    }

    /// Answers the peer that its connection cannot be made. The connection has ended.
    pub(crate) fn refuse(&mut self, id: FlowId, reason: Vec<u8>) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.due.refused = Some(reason);
            self.queue(id);
        }
    }

    /// Returns the number of bytes of a connection that the peer accepts now. The program has sent what
    /// [`write_control`](Self::write_control) wrote before.
    pub(crate) fn sendable(&self, id: FlowId) -> u64 {
        self.flows.get(&id).map_or(0, Flow::sendable)
    }

    /// Counts bytes of a connection that the program has written into the stream, with their header: at most
    /// [`sendable`](Self::sendable).
    pub(crate) fn sent(&mut self, id: FlowId, count: usize) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.sent(count);
        }
    }

    /// Ends this end's direction of a connection, after what was sent.
    pub(crate) fn finish(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.sending = FlowSending::Finished;
            flow.due.fin = true;
            self.queue(id);
        }
    }

    /// Ends a connection by a reset. The peer is told, unless it has reset the connection itself.
    pub(crate) fn reset(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            if flow.is_reset_by_peer {
                return self.remove(id);
            }
            flow.sending = FlowSending::Finished;
            flow.due.reset = true;
            self.queue(id);
        }
    }

    /// Counts bytes of a connection that the socket has taken.
    pub(crate) fn consume(&mut self, id: FlowId, count: usize) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if let Some(more) = flow.window.consume(count, &self.budget) {
            if !flow.has_received_fin {
                flow.due.window += more;
                self.queue(id);
            }
        }
        self.remove_if_over(id);
    }

    /// Handles a frame of the peer.
    /// Fails if the peer breaks the protocol. The tunnel must end.
    pub(crate) fn receive<'a>(&mut self, piece: FramePiece<'a>) -> Result<MuxEvent<'a>, MuxFault> {
        match piece {
            FramePiece::Message(message) => Ok(MuxEvent::Message(message)),
            FramePiece::Open {
                flow,
                window,
                target,
            } => self.receive_open(flow, window, target),
            FramePiece::Opened { flow, window } => self.receive_opened(flow, window),
            FramePiece::Refused { flow, reason } => {
                if self.asked(flow)?.is_none() {
                    return Ok(MuxEvent::None);
                }
                self.remove(flow);
                Ok(MuxEvent::Refused(flow, reason))
            }
            FramePiece::Data { flow, bytes } => self.receive_data(flow, bytes),
            FramePiece::Fin(flow) => self.receive_fin(flow),
            FramePiece::Reset(id) => {
                let Some(flow) = self.live(id)? else {
                    return Ok(MuxEvent::None);
                };
                flow.reset_by_peer();
                self.remove_if_over(id);
                Ok(MuxEvent::Reset(id))
            }
            FramePiece::Window { flow, more } => self.receive_window(flow, more),
        }
    }

    /// Writes the frames that are due, other than data, to `room`, as many as fit. Returns the number of bytes.
    pub(crate) fn write_control(&mut self, room: &mut [u8]) -> usize {
        let mut writer = FrameWriter { room, written: 0 };
        while let Some(message) = self.messages.front() {
            if !writer.frame(FrameKind::Message, 0, &[message]) {
                return writer.written;
            }
            self.messages.pop_front();
        }
        while let Some(&id) = self.full.front() {
            if !writer.frame(FrameKind::Refused, id, &[]) {
                return writer.written;
            }
            self.full.pop_front();
        }
        while let Some(&id) = self.due.front() {
            let Some(flow) = self.flows.get_mut(&id) else {
                self.due.pop_front();
                continue;
            };
            if !writer.flow(id, flow) {
                return writer.written;
            }
            flow.is_queued = false;
            self.due.pop_front();
            if flow.due.reset || flow.due.refused.is_some() {
                self.remove(id);
            } else {
                self.remove_if_over(id);
            }
        }
        writer.written
    }

    /// Returns true if frames other than data are due.
    pub(crate) fn has_control(&self) -> bool {
        !(self.messages.is_empty() && self.full.is_empty() && self.due.is_empty())
    }

    fn receive_open(
        &mut self,
        id: FlowId,
        window: u32,
        target: Vec<u8>,
    ) -> Result<MuxEvent<'static>, MuxFault> {
        if u64::from(id) != self.peer_next {
            return Err(MuxFault::Number);
        }
        self.peer_next += 2;
        let Some(own) = self.budget.new_window() else {
            if self.full.len() == MOST_FULL {
                return Err(MuxFault::Unexpected);
            }
            self.full.push_back(id);
            return Ok(MuxEvent::None);
        };
        self.flows.insert(id, Flow::new(own, window));
        Ok(MuxEvent::Open(id, target))
    }

    fn receive_opened(&mut self, id: FlowId, window: u32) -> Result<MuxEvent<'static>, MuxFault> {
        let Some(flow) = self.asked(id)? else {
            return Ok(MuxEvent::None);
        };
        if !flow.add_window(window) {
            return Err(MuxFault::Unexpected);
        }
        flow.sending = FlowSending::Open;
        Ok(MuxEvent::Opened(id))
    }

    fn receive_data<'a>(&mut self, id: FlowId, bytes: &'a [u8]) -> Result<MuxEvent<'a>, MuxFault> {
        let Some(flow) = self.receiving(id)? else {
            return Ok(MuxEvent::None);
        };
        flow.window.receive(bytes.len())?;
        Ok(MuxEvent::Data(id, bytes))
    }

    fn receive_fin(&mut self, id: FlowId) -> Result<MuxEvent<'static>, MuxFault> {
        let Some(flow) = self.receiving(id)? else {
            return Ok(MuxEvent::None);
        };
        flow.has_received_fin = true;
        self.remove_if_over(id);
        Ok(MuxEvent::Fin(id))
    }

    fn receive_window(&mut self, id: FlowId, more: u32) -> Result<MuxEvent<'static>, MuxFault> {
        let Some(flow) = self.live(id)? else {
            return Ok(MuxEvent::None);
        };
        let was_empty = flow.sendable() == 0;
        if !flow.add_window(more) {
            return Err(MuxFault::Unexpected);
        }
        let is_writable = was_empty && flow.sendable() > 0;
        Ok(if is_writable {
            MuxEvent::Writable(id)
        } else {
            MuxEvent::None
        })
    }

    /// Returns the connection as [`live`](Self::live) does. Fails also if the peer may not send on it now.
    fn receiving(&mut self, id: FlowId) -> Result<Option<&mut Flow>, MuxFault> {
        let flow = self.live(id)?;
        let is_closed = |flow: &Flow| flow.has_received_fin || flow.sending == FlowSending::Opening;
        if flow.as_deref().is_some_and(is_closed) {
            return Err(MuxFault::Unexpected);
        }
        Ok(flow)
    }

    /// Returns the connection; none if it has ended, because its last frames may cross a reset. Fails if there was
    /// none.
    fn live(&mut self, id: FlowId) -> Result<Option<&mut Flow>, MuxFault> {
        let was_opened = if self.is_own(id) {
            self.next.is_none_or(|next| id < next)
        } else {
            u64::from(id) < self.peer_next
        };
        if !was_opened {
            return Err(MuxFault::Number);
        }
        // After a reset the connection takes no more frames.
        let flow = self.flows.get_mut(&id);
        let has_ended =
            |flow: &Flow| flow.due.reset || flow.due.refused.is_some() || flow.is_reset_by_peer;
        Ok(flow.filter(|flow| !has_ended(flow)))
    }

    /// Returns the connection that the peer answers; none if it has ended. Fails if the peer was not asked for it.
    fn asked(&mut self, id: FlowId) -> Result<Option<&mut Flow>, MuxFault> {
        if !self.is_own(id) {
            return Err(MuxFault::Unexpected);
        }
        match self.live(id)? {
            Some(flow) if flow.sending != FlowSending::Opening || flow.due.open.is_some() => {
                Err(MuxFault::Unexpected)
            }
            asked => Ok(asked),
        }
    }

    /// Returns true if this end gives the number to connections.
    fn is_own(&self, id: FlowId) -> bool {
        u64::from(id) % 2 != self.peer_next % 2
    }

    fn queue(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            if !std::mem::replace(&mut flow.is_queued, true) {
                self.due.push_back(id);
            }
        }
    }

    fn remove_if_over(&mut self, id: FlowId) {
        if self.flows.get(&id).is_some_and(Flow::is_over) {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.remove(&id) {
            self.budget.release(&flow.window);
        }
    }

    /// Returns the memory that no connection has.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn free(&self) -> u64 {
        self.budget.free()
    }
}

/// Writes frames into a part of a chunk.
struct FrameWriter<'a> {
    room: &'a mut [u8],
    written: usize,
}

impl FrameWriter<'_> {
    /// Writes a frame whose payload is these parts, if it fits.
    fn frame(&mut self, kind: FrameKind, flow: FlowId, parts: &[&[u8]]) -> bool {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let value = u32::try_from(length).unwrap_or(u32::MAX);
        self.write(FrameHead { kind, flow, value }, parts, length)
    }

    fn write(&mut self, head: FrameHead, parts: &[&[u8]], length: usize) -> bool {
        let Some(room) = self.room.get_mut(self.written..) else {
            return false;
        };
        if room.len() < FRAME_HEADER_BYTES + length {
            return false;
        }
        let (header, mut payload) = room.split_at_mut(FRAME_HEADER_BYTES);
        header.copy_from_slice(&head.encode());
        for part in parts {
            let (target, rest) = payload.split_at_mut(part.len());
            target.copy_from_slice(part);
            payload = rest;
        }
        self.written += FRAME_HEADER_BYTES + length;
        true
    }

    /// Writes the frames of a connection that are due. Returns false if one does not fit.
    fn flow(&mut self, id: FlowId, flow: &mut Flow) -> bool {
        let due = &mut flow.due;
        if let Some(target) = due.open.take() {
            // Also before a reset: the peer counts the connections.
            let window = flow.window.first().to_le_bytes();
            if !self.frame(FrameKind::Open, id, &[&window, &target]) {
                due.open = Some(target);
                return false;
            }
        }
        let bare = |kind, value| FrameHead {
            kind,
            flow: id,
            value,
        };
        // An end stands before a reset, so that the program there knows that it has all bytes.
        if due.reset && !due.fin {
            return self.write(bare(FrameKind::Reset, 0), &[], 0);
        }
        if let Some(reason) = &due.refused {
            return self.frame(FrameKind::Refused, id, &[reason]);
        }
        if due.opened {
            let first = flow.window.first();
            if !self.write(bare(FrameKind::Opened, first), &[], 0) {
                return false;
            }
            due.opened = false;
        }
        if due.window > 0 {
            if !self.write(bare(FrameKind::Window, due.window), &[], 0) {
                return false;
            }
            due.window = 0;
        }
        if due.fin {
            if !self.write(bare(FrameKind::Fin, 0), &[], 0) {
                return false;
            }
            due.fin = false;
        }
        !due.reset || self.write(bare(FrameKind::Reset, 0), &[], 0)
    }
}

/// Handles `data` as what a peer sends, in two parts, and answers each connection. The memory stays within the budget,
/// and all of it is free again after every connection was reset.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let (mut mux, mut decoder) = (
        Mux::new(MuxEnd::Odd, &Arc::default()),
        frame::FrameDecoder::default(),
    );
    let mut room = vec![0; 4096];
    let mut flows: Vec<_> = mux.open(b"target".to_vec()).into_iter().collect();
    while mux.write_control(&mut room) > 0 {}
    for mut part in [&data[..data.len() / 2], &data[data.len() / 2..]] {
        while let Ok(Some(piece)) = decoder.next(&mut part) {
            let Ok(event) = mux.receive(piece) else {
                return;
            };
            match event {
                MuxEvent::Open(id, target) if target.is_empty() => mux.refuse(id, Vec::new()),
                MuxEvent::Open(id, _) => {
                    flows.push(id);
                    mux.accept(id);
                }
                MuxEvent::Data(id, bytes) => {
                    assert!(!bytes.is_empty());
                    mux.consume(id, bytes.len());
                }
                MuxEvent::Fin(id) => mux.finish(id),
                _ => {}
            }
            assert!(mux.free() <= window::BUDGET_BYTES);
            while mux.write_control(&mut room) > 0 {}
        }
    }
    for id in flows {
        mux.reset(id);
    }
    while mux.write_control(&mut room) > 0 {}
    assert_eq!((mux.count(), mux.free()), (0, window::BUDGET_BYTES));
}
