//! How fast the stderr of a session is read: no faster than the user reads the messages.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, poll_immediate};
use tokio_util::sync::CancellationToken;

/// Returns a future that waits until there is room for more lines of stderr.
pub(crate) type Room = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The most bytes of stderr that are read without room when the stage has ended: more than all buffers between the
/// command and this process hold, so that the last lines of every command are shown.
const LAST_BYTES: usize = 8 << 20;

/// Decides when the stderr of a session is read again.
///
/// While the user does not read the messages, stderr is left unread, and the command waits in a write as it would in a
/// shell. ssh and other programs stop passing on the agent's messages as well when their buffers are full of stderr, so
/// the agent is not taken for dead meanwhile.
pub(super) struct StderrPace {
    room: Room,
    /// Cancelled when the stage has ended, or is told to end: what it has written is then read without room.
    ended: CancellationToken,
    held: Mutex<Holding>,
}

/// Whether stderr is left unread.
enum Holding {
    Never,
    Now,
    Until(Instant),
}

impl StderrPace {
    pub(super) fn new(room: Room) -> Self {
        Self {
            room,
            ended: CancellationToken::new(),
            held: Mutex::new(Holding::Never),
        }
    }

    /// Waits until stderr may be read. `last_bytes` is the number of bytes that were read since the stage has ended.
    ///
    /// # Cancel safety
    ///
    /// Do not drop the future: stderr would count as unread forever.
    pub(super) async fn wait(&self, last_bytes: usize) {
        let mut room = (self.room)();
        let may_end = last_bytes < LAST_BYTES;
        if poll_immediate(&mut room).await.is_some() || (may_end && self.ended.is_cancelled()) {
            return;
        }
        self.set(Holding::Now);
        tokio::select! {
            () = room => {}
            () = self.ended.cancelled(), if may_end => {}
        }
        self.set(Holding::Until(Instant::now()));
    }

    /// Lets stderr be read to its end without room: the stage has ended, or is told to end.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Returns true if the stage has ended, or was told to end.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Returns true if stderr was left unread at any time since `ago`.
    pub(super) fn was_held(&self, ago: Duration) -> bool {
        match *self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            Holding::Never => false,
            Holding::Now => true,
            Holding::Until(end) => end.elapsed() < ago,
        }
    }

    fn set(&self, hold: Holding) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = hold;
    }
}
