//! The receiving side of a tunnel: from the slots of the stream into the sockets of local programs.
//!
//! Bytes are written from the slot itself. What a socket does not take is copied, and waits in memory that the
//! connection's window bounds; so a program that does not read holds up its own connection only.
//!
//! If a program takes no more bytes, those for it are dropped, and the sending side sends what the program wrote
//! before. If the peer resets a connection, the program gets the bytes before the reset.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::AsyncBufRead,
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use super::{
    TunnelFault,
    flows::{FlowReadiness, RESET_PATIENCE, RestEnd, TunnelShared},
    messages::{ForwardRefusal, TUNNEL_VERSION, TunnelMessage, decode},
    peer::TunnelPeer,
    socket::SocketWriter,
};
use crate::forward::mux::{
    MuxEvent,
    frame::{FlowId, FrameDecoder},
};

/// A queue that has grown beyond this is freed when it is empty.
const KEPT_QUEUE_BYTES: usize = 16 << 10;

/// The time between two looks at the connections that are to be reset.
const RESET_TICK: Duration = Duration::from_millis(20);

/// The receiving side.
pub(super) struct TunnelReceiver<'a, S> {
    stream: &'a mut S,
    sink: TunnelSink,
}

/// What received frames go to.
struct TunnelSink {
    shared: Arc<TunnelShared>,
    decoder: FrameDecoder,
    writers: HashMap<FlowId, QueuedWriter>,
    /// The connections that the peer has reset, and whose programs have not taken all bytes.
    resetting: HashMap<FlowId, ResetProgress>,
    reset_ticks: Interval,
    peer: TunnelPeer,
    /// Room for the connections that wake-ups name: it is empty between two polls.
    ready: Vec<FlowId>,
    has_greeted: bool,
    /// The peer has ended the stream in order.
    has_ended: bool,
}

/// A socket, and the bytes that it has not taken.
#[derive(Default)]
struct QueuedWriter {
    /// None while the connection is being opened, and after a write has failed.
    socket: Option<(SocketWriter, FlowReadiness)>,
    queue: BytesMut,
    /// No more bytes follow.
    is_finished: bool,
    /// The program takes no more bytes.
    has_failed: bool,
}

/// How far the bytes before a reset have come.
struct ResetProgress {
    /// The bytes that the program's socket, and then its kernel, have not taken.
    left: (usize, usize),
    /// The time at which there were more.
    since: Instant,
}

/// What became of a connection after a write.
enum WriteOutcome {
    /// It goes on.
    Open,
    /// The local program has read its end.
    Ended,
    /// The local program takes no more bytes.
    Failed(RestEnd),
}

impl<'a, S: AsyncBufRead + Unpin> TunnelReceiver<'a, S> {
    pub(super) fn new(stream: &'a mut S, shared: Arc<TunnelShared>, peer: TunnelPeer) -> Self {
        let mut reset_ticks = interval(RESET_TICK);
        reset_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let sink = TunnelSink {
            shared,
            decoder: FrameDecoder::default(),
            writers: HashMap::new(),
            resetting: HashMap::new(),
            reset_ticks,
            peer,
            ready: Vec::new(),
            has_greeted: false,
            has_ended: false,
        };
        Self { stream, sink }
    }

    /// Receives until the peer ends the stream in order.
    pub(super) async fn run(mut self) -> Result<(), TunnelFault> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TunnelFault>> {
        let Self { stream, sink } = self;
        sink.shared.writable.register(cx);
        sink.adopt();
        sink.flush_writable();
        while !sink.has_ended {
            let polled = Pin::new(&mut **stream).poll_fill_buf(cx);
            let bytes = match polled {
                Poll::Ready(Ok(bytes)) => bytes,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(TunnelFault::of_stream(&error)));
                }
                Poll::Pending => break,
            };
            if bytes.is_empty() {
                sink.end()?;
                break;
            }
            let count = bytes.len();
            sink.handle(bytes)?;
            Pin::new(&mut **stream).consume(count);
        }
        // After the frames, among which there may be resets.
        sink.look_at_resetting(cx);
        let state = sink.shared.lock();
        let (has_control, count) = (state.mux.has_control(), state.mux.count());
        drop(state);
        if has_control || sink.has_ended {
            sink.shared.readable.wake();
        }
        if sink.has_ended && count == 0 && sink.resetting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}

impl TunnelSink {
    /// Takes over what other tasks have left for this one.
    fn adopt(&mut self) {
        let mut state = self.shared.lock();
        let mut new = std::mem::take(&mut state.new_writers);
        let cut = std::mem::take(&mut state.cut_writers);
        // A connection that was reset before this task saw it has no socket any more.
        new.retain(|(id, _)| state.has_socket(*id));
        drop(state);
        for (id, socket) in new {
            let readiness = self.shared.writable.place(id);
            let writer = self.writers.entry(id).or_default();
            writer.socket = Some((socket, readiness));
            self.flush(id);
        }
        for id in cut {
            self.writers.remove(&id);
            self.resetting.remove(&id);
        }
    }

    /// Resets the connections whose programs have taken the bytes before the reset, or take none.
    fn look_at_resetting(&mut self, cx: &mut Context<'_>) {
        while !self.resetting.is_empty() && self.reset_ticks.poll_tick(cx).is_ready() {
            let (writers, now) = (&self.writers, Instant::now());
            let is_due = |(id, progress): (&FlowId, &mut ResetProgress)| {
                let left = writers.get(id).map_or((0, 0), QueuedWriter::left);
                let is_due = left == (0, 0) || progress.is_stuck(left, now);
                is_due.then_some(*id)
            };
            let due: Vec<_> = self.resetting.iter_mut().filter_map(is_due).collect();
            for id in due {
                self.end_reset(id);
            }
        }
    }

    /// Writes the queues of the sockets that accept bytes again.
    fn flush_writable(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        self.shared.writable.drain_into(&mut ready);
        for id in ready.drain(..) {
            self.flush(id);
        }
        self.ready = ready;
    }

    /// Handles the end of the stream. Local programs may not have taken all bytes yet.
    fn end(&mut self) -> Result<(), TunnelFault> {
        if !self.decoder.is_between_frames() || !self.shared.lock().mux.is_all_received() {
            return Err(TunnelFault::EndedEarly);
        }
        self.has_ended = true;
        self.shared.end.close();
        self.shared.close();
        Ok(())
    }

    fn handle(&mut self, mut bytes: &[u8]) -> Result<(), TunnelFault> {
        while let Some(piece) = self.decoder.next(&mut bytes)? {
            let event = self.shared.lock().mux.receive(piece)?;
            self.handle_event(event)?;
        }
        Ok(())
    }

    fn handle_event(&mut self, event: MuxEvent<'_>) -> Result<(), TunnelFault> {
        if !self.has_greeted {
            return self.greet(&event);
        }
        match event {
            MuxEvent::None => {}
            MuxEvent::Message(message) => {
                let message = decode(&message).ok_or(TunnelFault::Message)?;
                self.peer.message(message, &self.shared)?;
            }
            MuxEvent::Open(id, target) => match decode(&target) {
                Some(target) => self.peer.open(id, target, &self.shared),
                None => return Err(TunnelFault::Message),
            },
            MuxEvent::Opened(id) => self.answer(id, Ok(())),
            MuxEvent::Refused(id, reason) => self.answer(id, Err(ForwardRefusal::decode(&reason))),
            MuxEvent::Data(id, bytes) => self.data(id, bytes),
            MuxEvent::Fin(id) => {
                self.writers.entry(id).or_default().is_finished = true;
                self.flush(id);
            }
            MuxEvent::Reset(id) => self.reset(id),
            MuxEvent::Writable(id) => {
                self.shared.lock().unblocked.push(id);
                self.shared.readable.wake();
            }
        }
        Ok(())
    }

    /// Handles the first frame of the peer.
    fn greet(&mut self, event: &MuxEvent<'_>) -> Result<(), TunnelFault> {
        let MuxEvent::Message(message) = event else {
            return Err(TunnelFault::Message);
        };
        match decode(message) {
            Some(TunnelMessage::Hello { version, .. }) if version == TUNNEL_VERSION => {
                self.has_greeted = true;
                self.shared.end.join(&self.shared);
                self.shared.greeted.cancel();
                Ok(())
            }
            Some(TunnelMessage::Hello { program, .. }) => Err(TunnelFault::Version(program)),
            _ => Err(TunnelFault::Message),
        }
    }

    /// Passes on the peer's answer to the task that has asked for a connection.
    fn answer(&mut self, id: FlowId, answer: Result<(), ForwardRefusal>) {
        let asked = self.shared.lock().asked.remove(&id);
        if answer.is_ok() {
            // Bytes that arrive before the socket is attached wait.
            self.writers.entry(id).or_default();
        }
        if let Some(asked) = asked {
            // A task that has gone away has reset the connection.
            let _ = asked.send(answer);
        }
    }

    /// Handles bytes of a connection.
    fn data(&mut self, id: FlowId, bytes: &[u8]) {
        let writer = self.writers.entry(id).or_default();
        if writer.has_failed {
            return self.shared.lock().mux.consume(id, bytes.len());
        }
        let mut taken = 0;
        if writer.queue.is_empty() {
            if let Some((socket, readiness)) = &mut writer.socket {
                let mut cx = readiness.context();
                while taken < bytes.len() {
                    match socket.poll_write(&mut cx, &bytes[taken..]) {
                        Poll::Ready(Ok(count)) if count > 0 => taken += count,
                        Poll::Pending => break,
                        Poll::Ready(failed) => {
                            writer.queue.extend_from_slice(&bytes[taken..]);
                            self.consumed(id, taken);
                            return self.failed(id, rest_end(&failed));
                        }
                    }
                }
            }
        }
        writer.queue.extend_from_slice(&bytes[taken..]);
        self.consumed(id, taken);
    }

    /// Writes the queue of a connection, as much as its socket takes.
    fn flush(&mut self, id: FlowId) {
        let Some(writer) = self.writers.get_mut(&id) else {
            return;
        };
        let (taken, outcome) = writer.flush();
        self.consumed(id, taken);
        match outcome {
            WriteOutcome::Open => {}
            WriteOutcome::Failed(_) if self.resetting.contains_key(&id) => self.end_reset(id),
            WriteOutcome::Ended => {
                let writer = self.writers.remove(&id);
                if let Some((socket, _)) = writer.and_then(|writer| writer.socket) {
                    socket.finish();
                }
                let mut state = self.shared.lock();
                self.shared.direction_ended(&mut state, id);
            }
            WriteOutcome::Failed(end) => self.failed(id, end),
        }
    }

    /// Counts bytes that a socket has taken.
    fn consumed(&self, id: FlowId, count: usize) {
        if count == 0 {
            return;
        }
        let mut state = self.shared.lock();
        state.mux.consume(id, count);
        state.count_received(id, count);
        let received = &self.shared.end.counts.received;
        received.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Drops the bytes for a local program that takes no more. The sending side ends the connection after the bytes of
    /// the program.
    fn failed(&mut self, id: FlowId, end: RestEnd) {
        let Some(writer) = self.writers.get_mut(&id) else {
            return;
        };
        writer.socket = None;
        writer.has_failed = true;
        let dropped = std::mem::take(&mut writer.queue).len();
        let mut state = self.shared.lock();
        state.mux.consume(id, dropped);
        state.failed_writers.push((id, end));
        drop(state);
        self.shared.readable.wake();
    }

    /// Handles a reset of the peer. The local program sees it after the bytes before it.
    fn reset(&mut self, id: FlowId) {
        let left = self.writers.get(&id).map_or((0, 0), QueuedWriter::left);
        let mut state = self.shared.lock();
        // A task that waits for the answer finds that there is none.
        state.asked.remove(&id);
        state.connecting.remove(&id);
        if left == (0, 0) {
            drop(state);
            return self.end_reset(id);
        }
        // Its bytes are not sent any more.
        state.cut_readers.push(id);
        drop(state);
        self.shared.readable.wake();
        let since = Instant::now();
        self.resetting.insert(id, ResetProgress { left, since });
    }

    /// Resets the socket of a connection that the peer has reset.
    fn end_reset(&mut self, id: FlowId) {
        self.resetting.remove(&id);
        self.writers.remove(&id);
        let mut state = self.shared.lock();
        state.mux.reset(id);
        state.cut_readers.push(id);
        self.shared.flow_ended(&mut state, id, true);
        drop(state);
        self.shared.readable.wake();
    }
}

impl ResetProgress {
    /// Records what is left now. Returns true if nothing was taken for too long.
    fn is_stuck(&mut self, left: (usize, usize), now: Instant) -> bool {
        if left != self.left {
            *self = Self { left, since: now };
        }
        now - self.since >= RESET_PATIENCE
    }
}

/// Returns how the bytes of a program end whose socket takes no more.
fn rest_end(failed: &io::Result<usize>) -> RestEnd {
    match failed {
        // The program has closed its socket in order, before a byte arrived that it did not expect.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => RestEnd::Fin,
        _ => RestEnd::Reset,
    }
}

impl QueuedWriter {
    /// Returns the bytes that the socket, and then the program's kernel, have not taken.
    fn left(&self) -> (usize, usize) {
        let socket = self.socket.as_ref();
        let unsent = socket.map_or(0, |(socket, _)| socket.unsent());
        (self.queue.len(), unsent)
    }

    /// Writes the queue, as much as the socket takes.
    fn flush(&mut self) -> (usize, WriteOutcome) {
        let Some((socket, readiness)) = &mut self.socket else {
            return (0, WriteOutcome::Open);
        };
        let mut cx = readiness.context();
        let mut taken = 0;
        while !self.queue.is_empty() {
            match socket.poll_write(&mut cx, &self.queue) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.queue.advance(count);
                    taken += count;
                }
                Poll::Pending => return (taken, WriteOutcome::Open),
                Poll::Ready(failed) => return (taken, WriteOutcome::Failed(rest_end(&failed))),
            }
        }
        if self.queue.capacity() > KEPT_QUEUE_BYTES {
            self.queue = BytesMut::new();
        }
        let outcome = if self.is_finished {
            WriteOutcome::Ended
        } else {
            WriteOutcome::Open
        };
        (taken, outcome)
    }
}
