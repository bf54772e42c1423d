//! Replaces the link of a stream while the stream runs.
//!
//! | file | what it has |
//! |---|---|
//! | [`shared`] | what asks for a new link, shared by both sides of the data path |
//! | [`silent_link`] | a link whose counts stand still |
//! | [`link_stalls`] | the request for a new link because the counts of this one stand still |
//! | [`renewer`] | the task that makes the new link, in steps with the peer |

pub(super) mod link_stalls;
pub(super) mod renewer;
pub(super) mod shared;
pub(super) mod silent_link;
