//! A look at a stream from elsewhere.

use std::sync::Arc;

use crate::{Error, Stats, transport::control::state::State};

/// Watches a stream from elsewhere while its halves are in use.
#[derive(Clone)]
pub struct Watch(pub(super) Arc<State>);

impl Watch {
    /// Completes when the stream has failed, or the peer wants no more bytes.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn interrupted(&self) -> Error {
        self.0.interrupted().await;
        self.error()
            .unwrap_or(Error::Misuse("interrupted without a cause"))
    }

    /// What ended the stream before its time, if anything did.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if self.0.sends() {
            self.0.send_error()
        } else {
            self.0.receive_error()
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}
