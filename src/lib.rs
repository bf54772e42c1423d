//! UNIX pipes from one machine to another at link speed, over RDMA or TCP.

mod config;
mod error;
mod key;
mod stats;

pub use key::{GeneratedKey, Key, KeyError};
