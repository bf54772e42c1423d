//! Replaces the link of a stream while the stream runs.
//!
//! | file | what it has |
//! |---|---|
//! | [`request`] | what asks for a new link, shared by both sides of the data path |
//! | [`silence`] | the request for a new link because nothing arrives over this one |
//! | [`driver`] | the task that makes the new link, in steps with the peer |

pub(super) mod driver;
pub(super) mod request;
pub(super) mod silence;
