//! What the processes of a copy send each other.
//!
//! | module | holds |
//! |---|---|
//! | [`order`] | the messages between rdcp and its two agents |
//! | [`record`] | what a lane carries: folders, files, parts of large files |
//! | [`question`] | what source and destination ask each other |

pub(crate) mod order;
pub(crate) mod question;
pub(crate) mod record;
