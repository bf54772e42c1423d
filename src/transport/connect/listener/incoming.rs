//! The streams that a listener accepts, as a `futures::Stream`.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::stream::FusedStream;

use super::Listener;
use crate::{Error, Stream};

/// The streams that a [`Listener`] accepts, as a [`futures::Stream`]: [`Listener::incoming`].
///
/// It yields an error only if the listener itself has ended, once, and ends with it.
#[derive(Debug)]
pub struct Incoming {
    listener: Listener,
    has_ended: bool,
}

impl Incoming {
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener,
            has_ended: false,
        }
    }

    /// Borrows the listener.
    #[must_use]
    pub fn get_ref(&self) -> &Listener {
        &self.listener
    }

    /// Returns the listener.
    #[must_use]
    pub fn into_inner(self) -> Listener {
        self.listener
    }
}

impl futures::Stream for Incoming {
    type Item = Result<Stream, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        self.has_ended = accepted.is_err();
        Poll::Ready(Some(accepted))
    }
}

impl FusedStream for Incoming {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}
