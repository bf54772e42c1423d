//! A view of a stream whose halves are in use elsewhere.

use std::sync::Arc;

use crate::{Error, Stats, transport::control::state::State};

/// A view of a stream, for use while its halves are in use elsewhere.
#[derive(Clone)]
pub struct Watch(pub(super) Arc<State>);

impl Watch {
    /// Waits until the stream has failed or the peer has stopped reading, and returns the error.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call continues to wait.
    pub async fn interrupted(&self) -> Error {
        self.0.interrupted().await;
        let cause = if self.0.sends() {
            self.0.send_error()
        } else {
            self.0.receive_error()
        };
        cause.unwrap_or(Error::Misuse("interrupted without a cause"))
    }

    /// Returns the error that ended the stream, if it ended with one.
    ///
    /// While the writer is in use, this includes [`Error::Stopped`], with which its writes fail. It is no error any more
    /// when the writer is dropped and the peer had taken every byte.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.0.end_error()
    }

    /// Returns the counts of both directions so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}
