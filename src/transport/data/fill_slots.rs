//! The trait through which slots are filled in place.
//!
//! It is all that the loop which carries bytes knows of a stream. The sending half implements it, and the public types
//! forward to that.

use std::{
    io,
    task::{Context, Poll},
};

/// A sending half that lends its slots to be filled in place.
pub(crate) trait FillSlots {
    /// Lends the free bytes of the slot that is being filled, at least one. `Pending` while every slot is in flight.
    ///
    /// # Errors
    ///
    /// When the stream has failed, or its reader needs no more.
    ///
    /// # Cancel safety
    ///
    /// Safe: the next call lends the same bytes.
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>>;

    /// Records that `count` more bytes of the slot hold data.
    fn advance(&mut self, count: usize);

    /// Posts a partly filled slot, because the source is idle. Does nothing if there is none.
    ///
    /// Registers the waker unless it returns an error: while the source is idle, this is the only call through which
    /// the caller learns that the stream has ended.
    ///
    /// # Errors
    ///
    /// When the stream has failed, or its reader needs no more.
    ///
    /// # Cancel safety
    ///
    /// Safe: the slot is posted once, however often this is called.
    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
