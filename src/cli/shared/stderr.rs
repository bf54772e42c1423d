//! Writes messages to stderr on a thread of its own, so that a terminal or a pipe that is not read delays nothing else.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    termios::tcgetwinsize,
};
use tokio::sync::Notify;

/// The number of queued bytes above which the lines of other programs wait: the size of a pipe, in which a shell would
/// hold them.
const ROOM_BYTES: usize = 64 << 10;

/// The number of queued bytes above which notices about other hosts are left out. No run of honest hosts has so many
/// notices, and a hostile host sends any number.
const FLOOD_BYTES: usize = 1 << 20;

/// The time between two updates of the progress bar: visibly alive, and almost free.
pub(crate) const INTERVAL: Duration = Duration::from_millis(200);

/// How long the program waits at its end for a stderr that is not read, after a signal has told it to end.
const HURRIED_LIMIT: Duration = Duration::from_secs(1);

/// The queue of messages to stderr. Clones are the same queue.
#[derive(Clone)]
pub(crate) struct StderrQueue(Arc<SharedQueue>);

/// The lines that a run shows below its messages on a terminal: a function that returns them as they are now, none longer
/// than the number of columns that it is given.
pub(crate) type ShownLines = Arc<dyn Fn(usize) -> Vec<String> + Send + Sync>;

struct SharedQueue {
    state: Mutex<QueueState>,
    /// Signalled when the state changes.
    changed: Condvar,
    /// Wakes the tasks that wait for room.
    room: Notify,
}

struct QueueState {
    messages: VecDeque<String>,
    /// The bytes of the messages that have not been written yet.
    bytes: usize,
    /// The number of notices that were left out since the last message about them.
    left_out: u64,
    bar: Option<ShownLines>,
    is_bar_drawn: bool,
    is_hurried: bool,
    writer: WriterState,
    /// The output, until the thread is started, which takes it.
    output: Option<Box<dyn Write + Send>>,
}

/// What the thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriterState {
    /// The thread waits for work, or has not been started.
    Waiting,
    /// The thread writes or draws.
    Writing,
    /// The thread panicked: all messages are dropped.
    Dead,
}

impl StderrQueue {
    pub(crate) fn new() -> Self {
        Self::to(Stderr)
    }

    fn to(output: impl Write + Send + 'static) -> Self {
        Self(Arc::new(SharedQueue {
            state: Mutex::new(QueueState {
                messages: VecDeque::new(),
                bytes: 0,
                left_out: 0,
                bar: None,
                is_bar_drawn: false,
                is_hurried: false,
                writer: WriterState::Waiting,
                output: Some(Box::new(output)),
            }),
            changed: Condvar::new(),
            room: Notify::new(),
        }))
    }

    /// Queues a message, without waiting. Each message is written in one write if stderr takes it, so that the lines of
    /// several programs do not mix.
    pub(crate) fn push(&self, message: String) {
        let mut state = self.0.lock();
        state.bytes += message.len();
        state.messages.push_back(message);
        self.start(state);
    }

    /// Sets the bar below the messages; `None` clears it. The thread draws it after one [`INTERVAL`], so that a short
    /// run shows no bar, and draws nothing while stderr is not read.
    pub(crate) fn set_bar(&self, bar: Option<ShownLines>) {
        let mut state = self.0.lock();
        state.bar = bar;
        self.start(state);
    }

    /// Removes the bar, and waits until it is cleared.
    pub(crate) fn clear_bar(&self) {
        self.set_bar(None);
        let mut state = self.0.lock();
        while state.bar.is_none() && (state.is_bar_drawn || state.writer == WriterState::Writing) {
            state = self.0.wait(state);
        }
    }

    /// Waits until fewer than [`ROOM_BYTES`] are queued.
    /// Cancel safe.
    pub(crate) async fn room(&self) {
        loop {
            let woken = self.0.room.notified();
            if self.0.lock().bytes < ROOM_BYTES {
                return;
            }
            woken.await;
        }
    }

    /// Returns true if so much is queued that notices about other hosts are left out, and counts one.
    pub(crate) fn leaves_out(&self) -> bool {
        let mut state = self.0.lock();
        let is_flooded = state.bytes >= FLOOD_BYTES;
        state.left_out += u64::from(is_flooded);
        is_flooded
    }

    /// Returns the number of notices that were left out since the last call.
    pub(crate) fn take_left_out(&self) -> u64 {
        std::mem::take(&mut self.0.lock().left_out)
    }

    /// Waits until every message has been written, as long as that takes: a user may be reading them in a pager. After
    /// [`hurry`](Self::hurry) it waits for one second at most.
    pub(crate) fn flush(&self) {
        let mut state = self.0.lock();
        let mut deadline = None;
        while !state.is_idle() {
            let limit = state.is_hurried.then(|| {
                let at = *deadline.get_or_insert_with(|| Instant::now() + HURRIED_LIMIT);
                at.saturating_duration_since(Instant::now())
            });
            state = match limit {
                Some(Duration::ZERO) => return,
                Some(limit) => self.0.wait_for(state, limit),
                None => self.0.wait(state),
            };
        }
    }

    /// Makes [`flush`](Self::flush) return soon: a signal has told the program to end.
    pub(crate) fn hurry(&self) {
        self.0.lock().is_hurried = true;
        self.0.changed.notify_all();
    }

    /// Wakes the thread, or starts it with the first message.
    fn start(&self, mut state: MutexGuard<'_, QueueState>) {
        let output = state.output.take();
        if state.writer == WriterState::Dead {
            state.forget();
        }
        drop(state);
        self.0.changed.notify_all();
        if output.is_some() {
            let writer = QueueWriter {
                shared: Arc::clone(&self.0),
                output,
                due: None,
            };
            // If no thread can be started, this thread writes the messages, and the next one tries again.
            let waiting = Arc::new(Mutex::new(Some(writer)));
            let writer = Arc::clone(&waiting);
            let run = move || {
                let writer = writer.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(writer) = writer {
                    writer.run();
                }
            };
            let started = thread::Builder::new().name("stderr".to_owned()).spawn(run);
            if started.is_err() {
                let writer = waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                if let Some(writer) = writer {
                    writer.write_queued();
                }
            }
        }
    }
}

impl fmt::Debug for StderrQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StderrQueue(..)")
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, or until `limit` has passed.
    fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, QueueState>,
        limit: Duration,
    ) -> MutexGuard<'a, QueueState> {
        let woken = self.changed.wait_timeout(state, limit);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl QueueState {
    fn is_idle(&self) -> bool {
        let is_clear = self.bar.is_none() && !self.is_bar_drawn;
        self.messages.is_empty() && self.writer != WriterState::Writing && is_clear
    }

    /// Drops everything that is queued.
    fn forget(&mut self) {
        self.messages.clear();
        self.bytes = 0;
        self.bar = None;
    }
}

/// The thread that writes to stderr. Only this thread writes, so other threads never wait for a reader.
struct QueueWriter {
    shared: Arc<SharedQueue>,
    /// The output; `None` after an error, when all messages are dropped: a closed stderr does not end the run.
    output: Option<Box<dyn Write + Send>>,
    /// When the bar is drawn next; `None` while there is no bar.
    due: Option<Instant>,
}

impl Drop for QueueWriter {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.output.is_some() {
            // The output was given back.
            return;
        }
        state.writer = WriterState::Dead;
        state.is_bar_drawn = false;
        state.forget();
        drop(state);
        self.shared.changed.notify_all();
        self.shared.room.notify_waiters();
    }
}

/// The next work of the thread.
enum WriteStep {
    Message(String),
    Draw(ShownLines),
    Clear,
}

impl QueueWriter {
    fn run(mut self) {
        // The lines as they stand on the terminal; empty if there are none.
        let mut drawn = String::new();
        loop {
            let written = match self.next(!drawn.is_empty()) {
                WriteStep::Message(message) if drawn.is_empty() => {
                    self.write(&message);
                    message.len()
                }
                WriteStep::Message(message) => {
                    self.write(&format!("{CLEAR}{message}{drawn}"));
                    message.len()
                }
                WriteStep::Draw(lines) => {
                    let (columns, rows) = terminal_size();
                    drawn = block(lines(columns - 1), rows);
                    self.write(&drawn);
                    0
                }
                WriteStep::Clear => {
                    drawn.clear();
                    self.write(CLEAR);
                    0
                }
            };
            self.done(written, !drawn.is_empty());
        }
    }

    /// Waits for the next work.
    fn next(&mut self, is_drawn: bool) -> WriteStep {
        let shared = &self.shared;
        let mut state = shared.lock();
        loop {
            let now = Instant::now();
            let due = state
                .bar
                .as_ref()
                .map(|_| self.due.unwrap_or(now + INTERVAL));
            self.due = due;
            let step = match state.bar.clone() {
                None if is_drawn => Some(WriteStep::Clear),
                bar => match (state.messages.pop_front(), bar) {
                    (Some(message), _) => Some(WriteStep::Message(message)),
                    (None, Some(lines)) if due.is_some_and(|due| due <= now) => {
                        Some(WriteStep::Draw(lines))
                    }
                    (None, _) => None,
                },
            };
            if let Some(step) = step {
                if matches!(step, WriteStep::Draw(_)) {
                    self.due = Some(now + INTERVAL);
                }
                state.writer = WriterState::Writing;
                return step;
            }
            state = match due {
                Some(due) => shared.wait_for(state, due.saturating_duration_since(now)),
                None => shared.wait(state),
            };
        }
    }

    fn done(&self, bytes: usize, is_bar_drawn: bool) {
        let mut state = self.shared.lock();
        state.writer = WriterState::Waiting;
        state.is_bar_drawn = is_bar_drawn;
        state.bytes -= bytes;
        let has_room = state.bytes < ROOM_BYTES;
        drop(state);
        self.shared.changed.notify_all();
        if has_room {
            self.shared.room.notify_waiters();
        }
    }

    /// Writes the messages that are queued, without a bar, and gives the output back to the queue.
    fn write_queued(mut self) {
        loop {
            let mut state = self.shared.lock();
            state.bar = None;
            let Some(message) = state.messages.pop_front() else {
                state.output = self.output.take();
                break;
            };
            state.bytes -= message.len();
            drop(state);
            self.write(&message);
        }
    }

    fn write(&mut self, message: &str) {
        if let Some(output) = &mut self.output {
            if output.write_all(message.as_bytes()).is_err() {
                self.output = None;
            }
        }
    }
}

/// Erases the lines. The cursor rests on the first character of the first one: so they can be erased although a
/// terminal of another width has wrapped them. A terminal may keep what is erased from its first character on, so the
/// first line is erased by itself, and the rest from the second character on.
const CLEAR: &str = "\r\x1b[2K\x1b[C\x1b[J\r";

/// Returns what draws lines in place of those that were drawn before, as many as a terminal of `rows` rows has room for.
/// A terminal that has become narrower, and has not said so yet, cuts them: lines that it wraps would stay behind.
fn block(mut lines: Vec<String>, rows: usize) -> String {
    lines.truncate(rows.saturating_sub(1).max(1));
    // Each line is erased by itself: a terminal may keep what is erased from its first row on.
    let text = lines.join("\n\x1b[2K");
    let back = match lines.len() {
        0 | 1 => String::new(),
        count => format!("\x1b[{}A", count - 1),
    };
    format!("\r\x1b[?7l\x1b[2K{text}\x1b[J\x1b[?7h\r{back}")
}

/// Returns the columns and rows of the terminal; those of a usual one if it does not say them.
pub(in crate::cli) fn terminal_size() -> (usize, usize) {
    let size = tcgetwinsize(io::stderr()).ok();
    let size = size.filter(|size| size.ws_col > 1 && size.ws_row > 0);
    size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

/// The stderr of this process, also if another process that has it open has made its writes non-blocking.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match io::stderr().write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let stderr = io::stderr();
                    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
                    retry_on_intr(|| poll(&mut ready, None))?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use futures::FutureExt;

    use super::*;

    /// An output whose reader takes one write for each permission. Without permissions it blocks, as a full pipe does.
    struct Blocked {
        permissions: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.permissions.recv().map_err(io::Error::other)?;
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.written.send(text).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn blocked() -> (StderrQueue, Sender<()>, Receiver<String>) {
        let (permit, permissions) = channel();
        let (written, texts) = channel();
        let queue = StderrQueue::to(Blocked {
            permissions,
            written,
        });
        (queue, permit, texts)
    }

    #[test]
    fn a_terminal_that_is_not_read_delays_the_lines_of_commands_and_loses_no_message() {
        let (queue, permit, texts) = blocked();
        assert!(queue.room().now_or_never().is_some());
        let count = ROOM_BYTES / 1000 + 2;
        for number in 0..count {
            queue.push(format!("{number:>999}\n"));
        }
        assert!(queue.room().now_or_never().is_none(), "no line waits");
        // A message of the program itself does not wait.
        queue.push("the end\n".to_owned());
        let waiting = thread::spawn({
            let queue = queue.clone();
            move || futures::executor::block_on(queue.room())
        });
        for _ in 0..=count {
            permit.send(()).unwrap();
        }
        queue.flush();
        waiting.join().unwrap();
        let texts: Vec<_> = texts.try_iter().collect();
        assert_eq!(texts.len(), count + 1);
        assert_eq!(texts[count], "the end\n");
        assert!((0..count).all(|number| texts[number].trim() == number.to_string()));
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_terminal_that_is_not_read() {
        let (queue, _permit, texts) = blocked();
        queue.push("never read\n".to_owned());
        let flushing = thread::spawn({
            let queue = queue.clone();
            move || queue.flush()
        });
        assert!(!flushing.is_finished());
        queue.hurry();
        flushing.join().unwrap();
        assert!(texts.try_recv().is_err());
    }

    #[test]
    fn a_hostile_host_fills_no_memory_with_notices() {
        let (queue, permit, _texts) = blocked();
        assert!(!queue.leaves_out());
        queue.push("x".repeat(FLOOD_BYTES));
        assert!(queue.leaves_out() && queue.leaves_out());
        assert_eq!((queue.take_left_out(), queue.take_left_out()), (2, 0));
        permit.send(()).unwrap();
        queue.flush();
        assert!(!queue.leaves_out());
    }

    #[test]
    fn a_closed_stderr_drops_all_messages() {
        let (queue, permit, texts) = blocked();
        drop(texts);
        permit.send(()).unwrap();
        for _ in 0..3 {
            queue.push("x".repeat(ROOM_BYTES));
        }
        queue.flush();
        assert!(queue.room().now_or_never().is_some());
    }

    #[test]
    fn a_writer_that_panics_does_not_hang_the_end_of_the_program() {
        let (queue, _permit, _texts) = blocked();
        queue.set_bar(Some(Arc::new(|_| panic!("on purpose"))));
        while queue.0.lock().writer != WriterState::Dead {
            thread::yield_now();
        }
        queue.push("dropped\n".to_owned());
        queue.flush();
    }

    #[test]
    fn lines_are_redrawn_in_place_below_the_messages_and_cleared_before_the_end_of_a_flush() {
        let (queue, permit, texts) = blocked();
        let (look, looks) = channel();
        let look = Mutex::new(look);
        let lines: ShownLines = Arc::new(move |columns| {
            assert_eq!(columns, 79);
            look.lock().unwrap().send(()).unwrap();
            vec!["one".to_owned(), "two".to_owned()]
        });
        queue.set_bar(Some(Arc::clone(&lines)));
        let drawn = "\r\x1b[?7l\x1b[2Kone\n\x1b[2Ktwo\x1b[J\x1b[?7h\r\x1b[1A";
        for _ in 0..2 {
            looks.recv().unwrap();
            permit.send(()).unwrap();
            assert_eq!(texts.recv().unwrap(), drawn);
        }
        queue.push("a message meanwhile\n".to_owned());
        loop {
            permit.send(()).unwrap();
            let text = texts.recv().unwrap();
            if text != drawn {
                assert_eq!(text, format!("{CLEAR}a message meanwhile\n{drawn}"));
                break;
            }
        }
        queue.set_bar(None);
        queue.push("the last message\n".to_owned());
        let clearing = thread::spawn({
            let queue = queue.clone();
            move || queue.flush()
        });
        loop {
            permit.send(()).unwrap();
            if texts.recv().unwrap() == CLEAR {
                break;
            }
        }
        permit.send(()).unwrap();
        assert_eq!(texts.recv().unwrap(), "the last message\n");
        clearing.join().unwrap();
        assert_eq!(Arc::strong_count(&lines), 1);
    }

    #[test]
    fn a_terminal_with_few_rows_gets_fewer_lines() {
        let lines = |count: usize| (0..count).map(|line| line.to_string()).collect();
        assert_eq!(
            block(lines(9), 3),
            "\r\x1b[?7l\x1b[2K0\n\x1b[2K1\x1b[J\x1b[?7h\r\x1b[1A"
        );
        assert_eq!(block(lines(1), 1), "\r\x1b[?7l\x1b[2K0\x1b[J\x1b[?7h\r");
    }
}
