//! Connections of unmodified programs over one stream: what rdforward does beyond the command line.
//!
//! | module | what it holds | I/O |
//! |---|---|---|
//! | [`specs`], [`policy`] | where to listen, what to connect to, and what is allowed | none |
//! | [`socks`] | the messages of SOCKS 5 | none |
//! | [`mux`] | many connections over one stream: frames, windows, states | none |
//! | [`tunnel`] | one end of a tunnel: local sockets, and a stream | tokio |
//! | [`relay`] | one end of an edge that goes through ssh | tokio |
//! | [`redirect`] | a command whose connections are redirected | seccomp, tokio |
//! | [`job`] | the far end as an agent, and what the controller needs for it | as `ssh` |

pub(crate) mod job;
pub(crate) mod mux;
pub(crate) mod policy;
pub(crate) mod redirect;
pub(crate) mod relay;
pub(crate) mod socks;
pub(crate) mod specs;
pub(crate) mod tunnel;
