//! UNIX pipes from one machine to another at link speed, over RDMA or TCP.

#[doc(hidden)]
pub mod cli;
mod config;
mod error;
mod key;
mod stats;

pub use key::{GeneratedKey, Key, KeyError};
