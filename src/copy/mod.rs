//! What rdcp does beyond streams and agents: copies files and trees from one host to another.
//!
//! | module | holds | I/O |
//! |---|---|---|
//! | [`path`], [`metadata`] | names, relative paths, what an entry has beside its contents | none |
//! | [`messages`] | what rdcp, its two agents and their lanes send each other: [`order`], [`record`], [`question`] | none |
//! | [`filter`] | which entries are left out | none |
//! | [`digest`] | the digests of files | none |
//! | [`base`] | the directory that the paths of an order are relative to, and that a server confines them to | directories |
//! | [`source`], [`destination`] | the engines: one reads and sends, the other writes | files, streams |
//! | [`job`] | an engine as an application of the agent | none |
//! | [`written`] | the set of entries that a run has written, which its copies pass on | none |
//! | [`supervised`] | a copy as the controller's supervisor sees it | none |

pub(crate) mod base;
pub(crate) mod destination;
pub(crate) mod digest;
pub(crate) mod filter;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
pub(crate) mod job;
mod messages;
pub(crate) mod metadata;
pub(crate) mod path;
pub(crate) mod source;
pub(crate) mod supervised;
pub(crate) mod written;

pub(crate) use messages::{order, question, record};
