//! The sending side of a tunnel: from the sockets of local programs into the slots of the stream.
//!
//! A connection is read when its socket has bytes, its peer accepts some, and a slot is free. The bytes are read into the slot
//! itself, behind the header of their frame. Ready connections take turns of one frame each. A connection whose peer accepts
//! none is not read, so it is looked at from time to time: its program may have reset it.

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
    time::{Interval, MissedTickBehavior, interval},
};

use super::{TunnelFault, ready::FlowReadiness, shared::TunnelShared, socket::SocketReader};
use crate::{
    forward::mux::frame::{
        FRAME_HEADER_BYTES, FlowId, FrameHead, MAX_CONTROL_BYTES, MAX_DATA_BYTES, PADDING,
    },
    transport::FillSlots,
};

/// A frame is begun in this much room or more: every frame that is not data fits into it.
const LEAST_ROOM: usize = FRAME_HEADER_BYTES + MAX_CONTROL_BYTES;

/// The time between two looks at the connections that are held up.
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
    held_up_ticks: Interval,
    is_shutting_down: bool,
}

/// A socket, and its place among those that wait.
struct ReadyReader {
    socket: SocketReader,
    readiness: FlowReadiness,
    is_listed: bool,
}

/// What a look at one connection led to.
enum Turn {
    /// Bytes were sent.
    Sent,
    /// Nothing can be sent now.
    Waits,
    /// The direction has ended.
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
            if !is_over {
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
            };
            self.readers.insert(id, reader);
            self.ready.push_back(id);
        }
        for id in state.cut_readers.drain(..) {
            self.readers.remove(&id);
        }
        self.woken.append(&mut state.unblocked);
        drop(state);
        self.shared.readable.drain_into(&mut self.woken);
        for id in self.woken.drain(..) {
            if let Some(reader) = self.readers.get_mut(&id) {
                if !std::mem::replace(&mut reader.is_listed, true) {
                    self.ready.push_back(id);
                }
            }
        }
    }

    /// Resets the connections that are held up and whose programs have reset them.
    fn look_at_held_up(&mut self, cx: &mut Context<'_>) {
        while !self.held_up.is_empty() && self.held_up_ticks.poll_tick(cx).is_ready() {
            let (shared, readers) = (&self.shared, &self.readers);
            self.held_up
                .retain(|id| readers.contains_key(id) && shared.lock().mux.sendable(*id) == 0);
            let is_reset = |id: &&FlowId| readers[*id].socket.is_reset();
            let reset: Vec<_> = self.held_up.iter().filter(is_reset).copied().collect();
            for id in reset {
                self.broken(id);
                // The frame of the reset is sent by the next poll.
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
        let sendable = usize::try_from(self.shared.lock().mux.sendable(id)).unwrap_or(usize::MAX);
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
        match polled {
            Poll::Pending => Ok(Turn::Waits),
            Poll::Ready(Ok(())) if count > 0 => {
                head.copy_from_slice(&FrameHead::data(id, count).encode());
                self.stream.advance(FRAME_HEADER_BYTES + count);
                let mut state = self.shared.lock();
                state.mux.sent(id, count);
                state.count_sent(id, count);
                drop(state);
                let sent = &self.shared.counts.sent;
                sent.fetch_add(count as u64, Ordering::Relaxed);
                Ok(Turn::Sent)
            }
            Poll::Ready(Ok(())) => {
                let mut state = self.shared.lock();
                state.mux.finish(id);
                self.shared.direction_ended(&mut state, id);
                drop(state);
                if let Some(reader) = self.readers.remove(&id) {
                    reader.socket.finish();
                }
                Ok(Turn::Ended)
            }
            Poll::Ready(Err(_)) => {
                self.broken(id);
                Ok(Turn::Ended)
            }
        }
    }
}
