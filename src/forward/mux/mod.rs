//! Many connections over one stream: frames, windows, and the state of each connection. Pure, no I/O.
//!
//! | file | what it holds |
//! |---|---|
//! | [`frame`] | the header of a frame |
//! | [`window`] | what the peer may send, and the memory of all connections |
//! | [`state`] | all connections of one end |
//!
//! The state holds no bytes of connections. What is sent goes from a socket straight into the stream, as much as the
//! peer accepts; what is received and cannot be written to a socket at once is held by the program, and never exceeds
//! the window that this end granted.

pub(crate) mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod state;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use state::{Mux, MuxEnd, MuxEvent};

/// The reason why the peer's frames are not those of this protocol. The tunnel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MuxFault {
    /// No frame has this kind.
    #[error("the tunnel received a frame of the unknown kind {0}")]
    Kind(u8),
    /// The header of a frame is invalid.
    #[error("the tunnel received an invalid frame")]
    Header,
    /// The peer opened a connection with a number that it may not use.
    #[error("the tunnel received a connection with a wrong number")]
    Number,
    /// The frame does not fit the state of its connection.
    #[error("the tunnel received a frame that its connection does not expect")]
    Unexpected,
    /// The peer sent more than it may.
    #[error("the tunnel received more bytes of a connection than it accepts")]
    BeyondWindow,
}
