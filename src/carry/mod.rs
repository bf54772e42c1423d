//! The loop that moves the bytes of rdsend, rdrecv, rdcat and rdpipe: all of a source into a stream, all of a stream into
//! a sink.
//!
//! [`send_all`] and [`receive_all`] move the bytes; both stop as soon as the stream fails.
//! [`send_all_and_finish`] also sends the end of the stream and waits for its confirmation. Opening
//! the source or sink, committing the output and confirming it are the caller's part, because a
//! program, a pipeline's own end and an agent's stage do these at different times.
//!
//! | file | what it has |
//! |---|---|
//! | `send` | sends all of a source |
//! | `receive` | receives all into a sink |
//! | `pump` | the loop that moves bytes: source to stream, and stream to sink |
//! | `streams` | what the loop needs of a stream besides its bytes: a watch, and an end |
//! | `thread` | a thread that moves the bytes of one edge, or of one direction of a stream |
//! | `error` | which end failed while bytes were carried |

mod error;
pub(crate) mod pump;
mod receive;
mod send;
mod streams;
pub(crate) mod thread;

pub(crate) use error::{CarryError, stream_error};
pub(crate) use receive::receive_all;
pub(crate) use send::{send_all, send_all_and_finish};
pub(crate) use streams::{Finish, Watched, unless_interrupted};

#[cfg(test)]
mod tests;
