//! The RDMA data path: which ports there are, and which pair of them to use.
//!
//! Everything here so far is plain functions over a sysfs root and two lists; nothing needs libibverbs.
#![allow(dead_code)] // until the data path uses it

mod choice;
mod device;
mod explain;
#[cfg(test)]
mod fixtures;
mod gid;
mod network;
mod offer;
mod rank;
mod sysfs;
#[cfg(test)]
mod tests;
