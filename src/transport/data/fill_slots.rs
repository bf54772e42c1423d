//! Filling the slots of a sending half in place: what the loop that carries bytes knows of a stream.

use std::{
    io,
    task::{Context, Poll},
};

/// A sending half that lends out registered memory to be filled in place.
pub(crate) trait FillSlots {
    /// Bytes of the slot now being filled that are still free: never none. Waits (`Pending`)
    /// while every slot is in flight.
    ///
    /// # Errors
    ///
    /// When the stream has failed, or its reader wants no more.
    ///
    /// # Cancel safety
    ///
    /// Asking again lends the same bytes.
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>>;

    /// `count` more bytes of that slot now hold data; a full slot is posted by this call.
    fn advance(&mut self, count: usize);

    /// Posts a partly filled slot, because the source is idle. Does nothing when there is none.
    ///
    /// Whatever it returns other than an error, it keeps the waker: while the source is idle this
    /// is the only call through which the pump learns that the stream has ended.
    ///
    /// # Errors
    ///
    /// When the stream has failed, or its reader wants no more.
    ///
    /// # Cancel safety
    ///
    /// Asking again is harmless; the slot is posted once.
    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
