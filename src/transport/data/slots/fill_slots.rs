//! The trait through which slots are filled in place.
//!
//! The loop of `carry` and the tunnels of rdforward send through it. The sending half implements it, and the public types
//! forward to the sending half.

use std::{
    io,
    task::{Context, Poll},
};

/// The sending side of a stream, which lends out registered memory to be filled in place.
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the programs carry bytes")
)]
pub(crate) trait FillSlots {
    /// Returns the free bytes of the slot that is being filled, at least one. Returns `Pending`
    /// while every slot is in flight.
    ///
    /// # Errors
    ///
    /// Fails if the stream has failed, or the peer has stopped reading.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call lends the same bytes.
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut [u8]>>;

    /// Marks the next `count` bytes of the slot as filled, and posts the slot if it is full.
    fn advance(&mut self, count: usize);

    /// Posts a partly filled slot because the source is idle. Does nothing if no slot is partly filled.
    ///
    /// Unless it fails, the call keeps the waker: while the source is idle, this is the only call
    /// that tells the pump of the stream's failure.
    ///
    /// # Errors
    ///
    /// Fails if the stream has failed, or the peer has stopped reading.
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call posts the slot once.
    fn post(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
