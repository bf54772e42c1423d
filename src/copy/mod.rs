//! What rdcp does beyond streams and agents: copies files and trees from one host to another.
//!
//! | module | holds | I/O |
//! |---|---|---|
//! | [`path`], [`metadata`] | names, relative paths, what an entry has beside its contents | none |
//! | [`order`] | the messages between rdcp and its two agents | none |
//! | [`record`] | what a lane carries: folders, files, parts of large files | none |
//! | [`question`] | what source and destination ask each other | none |
//! | [`context`] | what an engine shares with its agent | none |
//! | [`source`] | the source of a copy: walks and sends | yes |

pub(crate) mod context;
pub(crate) mod metadata;
pub(crate) mod order;
pub(crate) mod path;
pub(crate) mod question;
pub(crate) mod record;
pub(crate) mod source;
