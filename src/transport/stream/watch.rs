//! A view of a stream whose halves are in use elsewhere.

use std::sync::Arc;

use crate::{Error, Stats, transport::control::state::State};

/// A view of a stream, for use while its halves are in use elsewhere.
#[derive(Clone)]
pub struct Watch(pub(super) Arc<State>);

impl Watch {
    /// Completes when the stream has failed, or the peer needs no more bytes.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn interrupted(&self) -> Error {
        self.0.interrupted().await;
        self.error()
            .unwrap_or(Error::Misuse("interrupted without a cause"))
    }

    /// Returns what ended the stream before its time, if anything did.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if self.0.sends() {
            self.0.send_error()
        } else {
            self.0.receive_error()
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}
