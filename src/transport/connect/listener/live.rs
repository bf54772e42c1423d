//! The streams of a listener that have not ended.

use tokio_util::task::TaskTracker;

/// The streams that a [`Listener`](crate::Listener) has made and that have not ended. It outlives the listener, so that a
/// server which has stopped listening can wait for those that it still serves.
///
/// ```
/// # use rdpipe::{Key, Stream};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let builder = Stream::builder(&Key::generate()?);
/// let listener = builder.bind("127.0.0.1:0").await?;
/// let live = listener.close().await; // the port is free
/// live.ended().await; // and every stream has ended
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LiveStreams(pub(super) TaskTracker);

impl LiveStreams {
    /// Returns the number of streams that have not ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits until no stream is live. A stream is live until its last message has been exchanged with the peer, so a
    /// program can exit after this.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call continues to wait.
    pub async fn ended(&self) {
        // It may track more afterwards: closing it only says that an empty one may be reported.
        self.0.close();
        self.0.wait().await;
    }
}
