//! What rdcp does beyond streams and agents: copies files and trees from one host to another.
//!
//! | module | holds | I/O |
//! |---|---|---|
//! | [`path`], [`metadata`] | names, relative paths, what an entry has beside its contents | none |
//! | [`messages`] | what rdcp, its two agents and their lanes send each other: [`order`], [`record`], [`question`] | none |
//! | [`operand`] | the paths that the user named | none |
//! | [`filter`] | which entries are left out | none |
//! | [`digest`] | the digests of files | none |
//! | [`extended_attributes`] | the extended attributes of an entry | files |
//! | [`owners`] | the numbers that users and groups have here | the user database |
//! | [`base`] | the directory that the paths of an order are relative to, and that a server confines them to | directories |
//! | [`context`] | what an engine shares with its agent | none |
//! | [`source`], [`destination`] | the engines: one reads and sends, the other writes | files, streams |
//! | [`job`] | an engine as an application of the agent | none |
//! | [`written`] | the set of entries that a run has written, which its copies pass on | none |
//! | [`supervised`] | a copy as the controller's supervisor sees it | none |

pub(crate) mod base;
pub(crate) mod context;
pub(crate) mod destination;
pub(crate) mod digest;
mod extended_attributes;
pub(crate) mod filter;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
pub(crate) mod job;
mod messages;
pub(crate) mod metadata;
pub(crate) mod operand;
pub(crate) mod owners;
pub(crate) mod path;
pub(crate) mod source;
pub(crate) mod supervised;
pub(crate) mod written;

pub(crate) use messages::{order, question, record};
