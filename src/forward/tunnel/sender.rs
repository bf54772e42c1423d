//! The sending side of a tunnel: from the sockets of local programs into the slots of the stream.
//!
//! A connection is read when its socket has bytes, its peer accepts some, and a slot is free. The bytes are read into
//! the slot itself, behind the header of their frame. Ready connections take turns of one frame each. A connection
//! whose peer accepts none is not read, so it is looked at from time to time: its program may have reset it.
//!
//! What a program wrote before its connection failed is sent before the reset.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::poll_fn,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncWrite, ReadBuf},
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use super::{
    TunnelFault,
    flows::{FlowReadiness, RESET_PATIENCE, RestEnd, TunnelShared},
    socket::SocketReader,
};
use crate::{
    forward::mux::frame::{
        FRAME_HEADER_BYTES, FlowId, FrameHead, MAX_CONTROL_BYTES, MAX_DATA_BYTES, PADDING,
    },
    transport::FillSlots,
};

/// A frame is begun in this much room or more: every frame that is not data fits into it.
const LEAST_ROOM: usize = FRAME_HEADER_BYTES + MAX_CONTROL_BYTES;

/// The time between two looks at the connections that are held up, and at those that the peer has reset.
const HELD_UP_TICK: Duration = Duration::from_millis(250);

/// The sending side.
pub(super) struct TunnelSender<'a, S> {
    stream: &'a mut S,
    shared: Arc<TunnelShared>,
    readers: HashMap<FlowId, ReadyReader>,
    /// The connections that may have bytes, in turn.
    ready: VecDeque<FlowId>,
    /// Room for the connections that wake-ups name: it is empty between two polls.
    woken: Vec<FlowId>,
    /// The connections whose peer accepted no bytes when they were looked at last.
    held_up: HashSet<FlowId>,
    /// The connections that the peer has reset, and whose programs have not taken all bytes.
    resetting: HashSet<FlowId>,
    held_up_ticks: Interval,
    is_shutting_down: bool,
}

/// A socket, and its place among those that wait.
struct ReadyReader {
    socket: SocketReader,
    readiness: FlowReadiness,
    is_listed: bool,
    mode: ReadMode,
}

/// What is done with the bytes of a program.
enum ReadMode {
    /// They are sent, and their end is an end.
    Send,
    /// They are sent, and then the connection is reset: its program takes no more bytes.
    SendRest {
        end: RestEnd,
        /// The time since which the peer has accepted none.
        held_up_since: Option<Instant>,
    },
    /// They are dropped, because the peer has reset the connection. They are read nevertheless: a program that reads
    /// after it has written gets what was sent to it.
    Drop {
        /// The bytes that the kernel of the program has not acknowledged.
        unsent: usize,
        /// The time at which there were more.
        since: Instant,
    },
}

/// What a look at one connection led to.
enum Turn {
    Sent,
    /// Nothing can be sent now.
    Waits,
    Ended,
}

impl<'a, S: FillSlots + AsyncWrite + Unpin> TunnelSender<'a, S> {
    pub(super) fn new(stream: &'a mut S, shared: Arc<TunnelShared>) -> Self {
        let mut held_up_ticks = interval(HELD_UP_TICK);
        held_up_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            stream,
            shared,
            readers: HashMap::new(),
            ready: VecDeque::new(),
            woken: Vec::new(),
            held_up: HashSet::new(),
            resetting: HashSet::new(),
            held_up_ticks,
            is_shutting_down: false,
        }
    }

    /// Sends until the tunnel is closed and its last connection has ended. Then ends the stream.
    pub(super) async fn run(mut self) -> Result<(), TunnelFault> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TunnelFault>> {
        self.shared.readable.register(cx);
        if !self.is_shutting_down {
            self.adopt();
            if let Poll::Ready(result) = self.poll_frames(cx) {
                result?;
                self.stream
                    .post(cx)
                    .map_err(|error| TunnelFault::of_stream(&error))?
                    .is_ready();
            }
            // After the frames: they show which connections are held up.
            self.look_at_held_up(cx);
            let state = self.shared.lock();
            let is_over = state.is_closing && state.mux.count() == 0 && !state.mux.has_control();
            drop(state);
            let is_over = is_over && self.shared.may_end();
            if !is_over || !self.resetting.is_empty() {
                return Poll::Pending;
            }
            self.is_shutting_down = true;
        }
        let shutdown = Pin::new(&mut *self.stream).poll_shutdown(cx);
        shutdown.map_err(|error| TunnelFault::of_stream(&error))
    }

    /// Takes over what other tasks have left for this one.
    fn adopt(&mut self) {
        let mut state = self.shared.lock();
        for (id, socket) in std::mem::take(&mut state.new_readers) {
            if !state.has_socket(id) {
                // The connection was reset before this task saw it.
                continue;
            }
            let readiness = self.shared.readable.place(id);
            let reader = ReadyReader {
                socket,
                readiness,
                is_listed: true,
                mode: ReadMode::Send,
            };
            self.readers.insert(id, reader);
            self.ready.push_back(id);
        }
        let cut = std::mem::take(&mut state.cut_readers);
        let failed = std::mem::take(&mut state.failed_writers);
        self.woken.append(&mut state.unblocked);
        drop(state);
        for id in cut {
            self.reset_by_peer(id);
        }
        for (id, end) in failed {
            self.send_rest(id, end);
        }
        self.shared.readable.drain_into(&mut self.woken);
        for id in self.woken.drain(..) {
            if let Some(reader) = self.readers.get_mut(&id) {
                if !std::mem::replace(&mut reader.is_listed, true) {
                    self.ready.push_back(id);
                }
            }
        }
    }

    /// Drops the bytes of a program whose connection the peer has reset. Drops the socket too, unless the program is to
    /// get bytes before the reset.
    fn reset_by_peer(&mut self, id: FlowId) {
        let Some(reader) = self.readers.get_mut(&id) else {
            return;
        };
        if !reader.socket.is_awaited() {
            self.readers.remove(&id);
            self.resetting.remove(&id);
            return;
        }
        if self.resetting.insert(id) {
            reader.mode = ReadMode::Drop {
                unsent: reader.socket.unsent(),
                since: Instant::now(),
            };
            self.woken.push(id);
        }
    }

    /// Sends what a program has written that takes no more bytes, and then a reset.
    fn send_rest(&mut self, id: FlowId, end: RestEnd) {
        if !self.shared.lock().has_socket(id) || self.resetting.contains(&id) {
            return;
        }
        match self.readers.get_mut(&id) {
            Some(reader) => {
                reader.send_rest(end);
                self.woken.push(id);
            }
            // The program has ended its bytes before.
            None => self.broken(id),
        }
    }

    /// Looks at connections whose sockets may not report what happens to them.
    fn look_at_held_up(&mut self, cx: &mut Context<'_>) {
        while !(self.held_up.is_empty() && self.resetting.is_empty())
            && self.held_up_ticks.poll_tick(cx).is_ready()
        {
            let (shared, readers, now) = (&self.shared, &mut self.readers, Instant::now());
            self.held_up
                .retain(|id| readers.contains_key(id) && shared.lock().mux.sendable(*id) == 0);
            let mut is_stuck = |id: &&FlowId| {
                let reader = readers.get_mut(*id);
                reader.is_some_and(|reader| reader.is_stuck(now))
            };
            let stuck: Vec<_> = self.held_up.iter().filter(&mut is_stuck).copied().collect();
            let taken: Vec<_> = self.resetting.iter().filter(is_stuck).copied().collect();
            for id in stuck {
                self.broken(id);
                // The frame of the reset is sent by the next poll.
                self.shared.readable.wake();
            }
            for id in taken {
                self.readers.remove(&id);
                self.resetting.remove(&id);
                self.shared.readable.wake();
            }
        }
    }

    /// Ends a connection whose local program has reset it.
    fn broken(&mut self, id: FlowId) {
        self.readers.remove(&id);
        let mut state = self.shared.lock();
        state.mux.reset(id);
        state.cut_writers.push(id);
        self.shared.flow_ended(&mut state, id, true);
        drop(state);
        self.shared.writable.wake();
    }

    /// Fills slots with the frames that are due. Ready when there are no more.
    fn poll_frames(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TunnelFault>> {
        loop {
            let has_control = self.shared.lock().mux.has_control();
            if !has_control && self.ready.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let room = ready!(self.stream.poll_slot(cx))
                .map_err(|error| TunnelFault::of_stream(&error))?;
            if room.len() < LEAST_ROOM {
                let padding = room.len();
                room.fill(PADDING);
                self.stream.advance(padding);
                continue;
            }
            if has_control {
                let written = self.shared.lock().mux.write_control(room);
                self.stream.advance(written);
                continue;
            }
            let Some(id) = self.ready.pop_front() else {
                continue;
            };
            match self.turn(id, cx)? {
                Turn::Sent => self.ready.push_back(id),
                Turn::Waits => {
                    if let Some(reader) = self.readers.get_mut(&id) {
                        reader.is_listed = false;
                    }
                }
                Turn::Ended => drop(self.readers.remove(&id)),
            }
        }
    }

    /// Reads one connection into the slot, behind the header of a frame.
    fn turn(&mut self, id: FlowId, cx: &mut Context<'_>) -> Result<Turn, TunnelFault> {
        let Some(reader) = self.readers.get_mut(&id) else {
            return Ok(Turn::Ended);
        };
        let is_dropped = matches!(reader.mode, ReadMode::Drop { .. });
        let sendable = if is_dropped {
            MAX_DATA_BYTES
        } else {
            usize::try_from(self.shared.lock().mux.sendable(id)).unwrap_or(usize::MAX)
        };
        if sendable == 0 {
            self.held_up.insert(id);
            return Ok(Turn::Waits);
        }
        let Poll::Ready(room) = self
            .stream
            .poll_slot(cx)
            .map_err(|error| TunnelFault::of_stream(&error))?
        else {
            return Ok(Turn::Sent);
        };
        let (head, payload) = room.split_at_mut(FRAME_HEADER_BYTES);
        let most = payload.len().min(MAX_DATA_BYTES).min(sendable);
        let mut buf = ReadBuf::new(&mut payload[..most]);
        let polled = reader
            .socket
            .poll_read(&mut reader.readiness.context(), &mut buf);
        let count = buf.filled().len();
        Ok(match polled {
            Poll::Pending => Turn::Waits,
            Poll::Ready(Ok(())) if is_dropped && count > 0 => Turn::Sent,
            Poll::Ready(Ok(())) if is_dropped => Turn::Waits,
            Poll::Ready(Ok(())) if count > 0 => {
                head.copy_from_slice(&FrameHead::data(id, count).encode());
                self.stream.advance(FRAME_HEADER_BYTES + count);
                if let ReadMode::SendRest { held_up_since, .. } = &mut reader.mode {
                    *held_up_since = None;
                }
                self.count(id, count);
                Turn::Sent
            }
            Poll::Ready(Ok(())) => {
                self.ended(id);
                Turn::Ended
            }
            Poll::Ready(Err(_)) if is_dropped => {
                self.resetting.remove(&id);
                Turn::Ended
            }
            Poll::Ready(Err(_)) => {
                self.broken(id);
                Turn::Ended
            }
        })
    }

    /// Counts bytes of a connection that were sent.
    fn count(&self, id: FlowId, count: usize) {
        let mut state = self.shared.lock();
        state.mux.sent(id, count);
        state.count_sent(id, count);
        drop(state);
        let sent = &self.shared.end.counts.sent;
        sent.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Handles the end of the bytes of a local program.
    fn ended(&mut self, id: FlowId) {
        let Some(ReadyReader { socket, mode, .. }) = self.readers.remove(&id) else {
            return;
        };
        let rest_end = match mode {
            ReadMode::SendRest { end, .. } => Some(end),
            ReadMode::Send | ReadMode::Drop { .. } => None,
        };
        let mut state = self.shared.lock();
        if rest_end != Some(RestEnd::Reset) {
            state.mux.finish(id);
        }
        if rest_end.is_none() {
            self.shared.direction_ended(&mut state, id);
            drop(state);
            return socket.finish();
        }
        drop(state);
        self.broken(id);
    }
}

impl ReadyReader {
    /// Sends what the program has written, and then a reset.
    fn send_rest(&mut self, end: RestEnd) {
        if let ReadMode::Send = self.mode {
            self.mode = ReadMode::SendRest {
                end,
                held_up_since: None,
            };
        }
    }

    /// Looks at a socket that is not read, or whose program is to take bytes before a reset. Returns true if the
    /// connection has to be reset now.
    fn is_stuck(&mut self, now: Instant) -> bool {
        match &mut self.mode {
            ReadMode::Send => {
                if self.socket.is_reset() {
                    self.send_rest(RestEnd::Reset);
                    return self.is_stuck(now);
                }
                false
            }
            ReadMode::SendRest { held_up_since, .. } => {
                now - *held_up_since.get_or_insert(now) >= RESET_PATIENCE
            }
            ReadMode::Drop { unsent, since } => {
                let left = self.socket.unsent();
                if left != *unsent {
                    (*unsent, *since) = (left, now);
                }
                !self.socket.is_awaited() || now - *since >= RESET_PATIENCE
            }
        }
    }
}
