//! The RDMA ports of this machine, which pair of ports two hosts should use, and why there is none.

pub(super) mod choice;
pub(super) mod device;
pub(super) mod explain;
#[cfg(test)]
pub(super) mod fixtures;
pub(super) mod gid;
mod network;
pub(super) mod offer;
pub(super) mod proposal;
pub(super) mod rank;
pub(super) mod sysfs;
