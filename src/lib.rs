//! UNIX pipes from one machine to another at link speed, over RDMA or TCP.

mod config;
mod error;
mod fd;
mod key;
mod pump;
mod stats;
