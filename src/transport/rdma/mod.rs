//! The RDMA data path: which ports there are, which pair of ports to use, how much memory to pin.
//!
//! Everything here so far is plain functions over a sysfs root and two lists; nothing needs libibverbs.
#![allow(dead_code)] // until the data path uses it

mod choice;
mod device;
mod explain;
#[cfg(test)]
mod fixtures;
mod gid;
mod memlock;
mod network;
mod offer;
mod rank;
mod sysfs;
#[cfg(test)]
mod tests;
