//! The RDMA data path: which ports there are.
//!
//! Everything here so far is plain functions over a sysfs root; nothing needs libibverbs.
#![allow(dead_code)] // until the data path uses it

mod choice;
mod device;
mod explain;
#[cfg(test)]
mod fixtures;
mod gid;
mod network;
mod offer;
mod sysfs;
#[cfg(test)]
mod tests;
