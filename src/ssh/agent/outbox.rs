//! The agent's messages to its controller, from the queue to the session. The queue is bounded in bytes, whatever the
//! controller makes the agent say and whether it reads or not.
//!
//! - An answer that says the same as one that waits is not queued: one pong answers all pings.
//! - Of the messages on the state of the work, only the last one waits ([`Outbox::replace`]).
//! - A producer that can wait does so while [`ROOM_BYTES`] are queued ([`Outbox::room`]): a controller that reads slowly
//!   makes the work slow, and does not end it.
//! - All others never wait. If they queue more than [`MOST_BYTES`], the session ends.
//! - A session whose writes make no progress for its time limit ends, too: the controller is stopped, or reads nothing.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::Notify,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::{codec::Encoder, sync::CancellationToken};
use zeroize::Zeroizing;

use super::ControllerError;
use crate::{
    running_time::within_running_time,
    ssh::{
        frames::codec,
        protocol::{FromAgent, Payload, encode},
    },
    threads,
};

/// The bytes of queued messages from which producers that can wait do so.
const ROOM_BYTES: usize = 256 << 10;

/// The most bytes of queued messages: messages that can wait take [`ROOM_BYTES`] and a message more, and all others are
/// few and short.
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// The bytes of the queue and of the allocator for each message.
const MESSAGE_BYTES: usize = 64;

/// The most bytes that are written before progress is noted.
const PIECE_BYTES: usize = 16 << 10;

/// How long the agent waits at its end for progress with its last messages.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Queues messages to the controller. They are sent in the order in which they are queued. Clones share the queue.
#[derive(Clone)]
pub(crate) struct Outbox(Arc<SharedQueue>);

struct SharedQueue {
    queue: Mutex<MessageQueue>,
    /// Wakes the writer.
    filled: Notify,
    /// Wakes the producers that wait for room.
    drained: Notify,
    /// Cancelled when the messages cannot be sent any more.
    ended: CancellationToken,
    /// Cancelled when no producer waits any more: the work ends.
    hurried: CancellationToken,
    /// The pieces that were written so far.
    written: AtomicU64,
}

#[derive(Default)]
struct MessageQueue {
    messages: VecDeque<Zeroizing<Vec<u8>>>,
    /// The bytes of `messages`, and of the message that is being written.
    bytes: usize,
    /// The last message on the state of the work.
    state: Option<Payload>,
    /// True if a ping was not answered yet.
    owes_pong: bool,
    /// True if no message follows.
    is_closed: bool,
    /// The reason why the messages cannot be sent any more.
    error: Option<ControllerError>,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").finish_non_exhaustive()
    }
}

impl Outbox {
    /// Queues a message without waiting. If the controller is gone the message is lost, and [`failed`](Self::failed)
    /// tells why.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "messages are made to be sent"
    )]
    pub(crate) fn send(&self, message: FromAgent) {
        self.push_to(self.queue(), &message);
    }

    /// Queues a message if there is room for messages that can wait, or if it is lost anyway. Returns false if it has to
    /// wait, for [`room`](Self::room).
    pub(crate) fn offer(&self, message: &FromAgent) -> bool {
        let may_wait = !self.0.hurried.is_cancelled();
        let queue = self.queue();
        if may_wait && !queue.is_closed && queue.bytes >= ROOM_BYTES {
            return false;
        }
        self.push_to(queue, message);
        true
    }

    /// Returns true if there is room for messages that can wait.
    pub(crate) fn has_room(&self) -> bool {
        self.queue().bytes < ROOM_BYTES
    }

    fn push_to(&self, mut queue: MutexGuard<'_, MessageQueue>, message: &FromAgent) {
        let Ok(message) = encode(message) else {
            return;
        };
        let bytes = message.len() + MESSAGE_BYTES;
        if queue.is_closed {
            return;
        }
        if queue.bytes + bytes > MOST_BYTES {
            return self.end(queue, ControllerError::Unread);
        }
        queue.bytes += bytes;
        queue.messages.push_back(message);
        drop(queue);
        self.0.filled.notify_one();
    }

    /// Queues an application's message on the state of its work, without waiting. It takes the place of the last such
    /// message if that was not sent yet.
    pub(crate) fn replace(&self, state: Payload) {
        let mut queue = self.queue();
        if !queue.is_closed {
            queue.state = Some(state);
            drop(queue);
            self.0.filled.notify_one();
        }
    }

    /// Answers a ping, without waiting.
    pub(super) fn pong(&self) {
        self.queue().owes_pong = true;
        self.0.filled.notify_one();
    }

    /// Waits until the queue has room for messages that can wait. Does not wait any more when the work or the session
    /// ends.
    /// Cancel safe.
    pub(crate) async fn room(&self) {
        loop {
            let mut drained = std::pin::pin!(self.0.drained.notified());
            // A message that is sent between the look and the wait wakes it.
            drained.as_mut().enable();
            if self.queue().bytes < ROOM_BYTES {
                return;
            }
            tokio::select! {
                () = drained => {}
                () = self.0.hurried.cancelled() => return,
                () = self.0.ended.cancelled() => return,
            }
        }
    }

    /// Lets no producer wait for room any more, because the work ends.
    pub(crate) fn hurry(&self) {
        self.0.hurried.cancel();
    }

    /// Waits until messages cannot be sent any more, and returns the reason.
    /// Cancel safe, and the reason is returned once.
    pub(super) async fn failed(&self) -> ControllerError {
        self.0.ended.cancelled().await;
        let error = self.queue().error.take();
        error.unwrap_or(ControllerError::Gone)
    }

    /// Drops what is queued, and takes no more messages.
    fn end(&self, mut queue: MutexGuard<'_, MessageQueue>, error: ControllerError) {
        *queue = MessageQueue {
            is_closed: true,
            error: Some(error),
            ..MessageQueue::default()
        };
        drop(queue);
        self.0.ended.cancel();
        self.0.filled.notify_one();
    }

    /// Returns the next message; none if there is none now. The error says that none follows.
    fn next(&self) -> Result<Option<Zeroizing<Vec<u8>>>, ()> {
        let mut queue = self.queue();
        let message = if let Some(state) = queue.state.take() {
            let message = encode(&FromAgent::Application(state));
            return message.map(Some).map_err(drop);
        } else if let Some(message) = queue.messages.pop_front() {
            message
        } else if std::mem::take(&mut queue.owes_pong) {
            return encode(&FromAgent::Pong).map(Some).map_err(drop);
        } else if queue.is_closed {
            return Err(());
        } else {
            return Ok(None);
        };
        // Every message shows that the agent is alive.
        queue.owes_pong = false;
        Ok(Some(message))
    }

    fn sent(&self, length: usize) {
        let mut queue = self.queue();
        queue.bytes = queue.bytes.saturating_sub(length + MESSAGE_BYTES);
        let has_room = queue.bytes < ROOM_BYTES;
        drop(queue);
        if has_room {
            self.0.drained.notify_waiters();
        }
    }

    fn queue(&self) -> MutexGuard<'_, MessageQueue> {
        let queue = &self.0.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that writes the messages in the outbox to the controller. Dropping it ends the task.
pub(super) struct ControlWriter {
    task: JoinHandle<()>,
    outbox: Outbox,
}

impl ControlWriter {
    /// Starts the task. Returns it and its outbox. Without a `limit` the controller may take any time to read.
    pub(super) fn start(
        output: impl AsyncWrite + Unpin + Send + 'static,
        limit: Option<Duration>,
    ) -> (Self, Outbox) {
        let outbox = Outbox(Arc::new(SharedQueue {
            queue: Mutex::default(),
            filled: Notify::new(),
            drained: Notify::new(),
            ended: CancellationToken::new(),
            hurried: CancellationToken::new(),
            written: AtomicU64::new(0),
        }));
        let task = threads::spawn(write(output, outbox.clone(), limit));
        let writer = Self {
            task,
            outbox: outbox.clone(),
        };
        (writer, outbox)
    }

    /// Waits until all messages have been written, as long as some are in each [`FLUSH_LIMIT`]. Later messages are lost.
    pub(super) async fn finish(mut self) {
        self.outbox.queue().is_closed = true;
        self.outbox.0.filled.notify_one();
        let written = || self.outbox.0.written.load(Ordering::Relaxed);
        let mut before = None;
        while before != Some(written()) {
            before = Some(written());
            if timeout(FLUSH_LIMIT, &mut self.task).await.is_ok() {
                return;
            }
        }
    }
}

impl Drop for ControlWriter {
    fn drop(&mut self) {
        self.task.abort();
        let queue = self.outbox.queue();
        self.outbox.end(queue, ControllerError::Gone);
    }
}

async fn write(mut output: impl AsyncWrite + Unpin, outbox: Outbox, limit: Option<Duration>) {
    let mut frames = codec();
    let mut frame = BytesMut::new();
    loop {
        let message = match outbox.next() {
            Err(()) => return,
            Ok(None) => {
                outbox.0.filled.notified().await;
                continue;
            }
            Ok(Some(message)) => message,
        };
        frame.clear();
        let length = message.len();
        if frames
            .encode(Bytes::from_owner(message), &mut frame)
            .is_err()
        {
            continue;
        }
        for piece in frame.chunks(PIECE_BYTES) {
            if let Err(error) = write_piece(&mut output, piece, limit).await {
                let queue = outbox.queue();
                return outbox.end(queue, error);
            }
            outbox.0.written.fetch_add(1, Ordering::Relaxed);
        }
        outbox.sent(length);
    }
}

async fn write_piece(
    output: &mut (impl AsyncWrite + Unpin),
    piece: &[u8],
    limit: Option<Duration>,
) -> Result<(), ControllerError> {
    let writing = async {
        output.write_all(piece).await?;
        output.flush().await
    };
    match limit {
        None => writing.await?,
        Some(limit) => {
            let written = within_running_time(limit, writing).await;
            written.ok_or(ControllerError::Stuck(limit))??;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::io::{DuplexStream, duplex};
    use tokio_util::codec::FramedRead;

    use super::*;
    use crate::ssh::protocol::decode;

    /// The bytes that fit into the pipe to a controller that does not read.
    const PIPE_BYTES: usize = 4096;

    fn warning(bytes: usize) -> FromAgent {
        FromAgent::Warning("w".repeat(bytes))
    }

    fn state(number: usize) -> Payload {
        Payload::encode(&number).unwrap()
    }

    /// Returns the messages that the controller reads to the end of the session.
    async fn read(controller: DuplexStream) -> Vec<FromAgent> {
        let frames = FramedRead::new(controller, codec());
        let frames = frames.map(|frame| decode(&frame.unwrap()).unwrap());
        frames.collect().await
    }

    fn queued(outbox: &Outbox) -> usize {
        outbox.queue().bytes
    }

    #[tokio::test]
    async fn pongs_and_states_that_wait_are_one_message() {
        let (controller, agent) = duplex(PIPE_BYTES);
        let (writer, outbox) = ControlWriter::start(agent, None);
        outbox.send(warning(PIPE_BYTES));
        for number in 0..100_000 {
            outbox.pong();
            outbox.replace(state(number));
        }
        assert!(queued(&outbox) < 2 * PIPE_BYTES, "{}", queued(&outbox));
        let (messages, ()) = tokio::join!(read(controller), writer.finish());
        let last = FromAgent::Application(state(99_999));
        assert!(
            messages.contains(&last) && messages.len() <= 3,
            "{}",
            messages.len()
        );
    }

    #[tokio::test]
    async fn a_queue_that_is_full_ends_the_session_and_is_dropped() {
        let (_controller, agent) = duplex(PIPE_BYTES);
        let (_writer, outbox) = ControlWriter::start(agent, None);
        let mut most = 0;
        for _ in 0..MOST_BYTES {
            outbox.send(warning(100));
            most = most.max(queued(&outbox));
        }
        assert!((MOST_BYTES / 2..=MOST_BYTES).contains(&most), "{most}");
        let why = outbox.failed().await.to_string();
        assert!(why.contains("does not read"), "{why}");
        assert_eq!(queued(&outbox), 0);
        assert!(outbox.queue().messages.is_empty());
    }

    #[tokio::test]
    async fn a_producer_that_waits_for_room_fills_no_queue_and_loses_nothing() {
        const COUNT: usize = 50_000;
        let (controller, agent) = duplex(PIPE_BYTES);
        let (writer, outbox) = ControlWriter::start(agent, None);
        let producer = outbox.clone();
        let producing = async move {
            let mut most = 0;
            for _ in 0..COUNT {
                while !producer.offer(&warning(100)) {
                    producer.room().await;
                }
                most = most.max(queued(&producer));
            }
            writer.finish().await;
            most
        };
        let (most, messages) = tokio::join!(producing, read(controller));
        assert_eq!(messages.len(), COUNT);
        assert!(most < ROOM_BYTES + 300, "{most}");
    }

    #[tokio::test]
    async fn work_that_ends_waits_for_no_room() {
        let (_controller, agent) = duplex(PIPE_BYTES);
        let (writer, outbox) = ControlWriter::start(agent, None);
        while outbox.offer(&warning(1000)) {}
        let waiting = outbox.clone();
        let waiting = tokio::spawn(async move { waiting.room().await });
        outbox.hurry();
        waiting.await.unwrap();
        assert!(outbox.offer(&warning(1000)));
        drop(writer);
        outbox.room().await;
        assert_eq!(queued(&outbox), 0);
    }

    #[tokio::test]
    async fn a_controller_that_reads_nothing_is_noticed() {
        let (_controller, agent) = duplex(PIPE_BYTES);
        let limit = Duration::from_millis(50);
        let (_writer, outbox) = ControlWriter::start(agent, Some(limit));
        outbox.send(warning(2 * PIPE_BYTES));
        let why = outbox.failed().await.to_string();
        assert!(why.contains("has read nothing for 50"), "{why}");
    }
}
