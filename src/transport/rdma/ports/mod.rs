//! The RDMA ports of this host, and which pair of ports two hosts should use.
//!
//! | file | what it has |
//! |---|---|
//! | [`sysfs`] | reads the small files of the kernel |
//! | [`device`] | the devices of this host, their ports and GIDs |
//! | [`recent`] | the devices as they were a moment ago, for many connections at once |
//! | `network` | the networks of this host's interfaces |
//! | [`gid`] | the address of a port |
//! | [`choice`] | which ports may be used: all, or those that the user named |
//! | [`offer`] | the ports as the peer sees them |
//! | [`rank`] | the pairs of ports that may work, the best first |
//! | [`proposal`] | the pairs that the acceptor proposes |
//! | [`explain`] | why there is no RDMA, in one sentence |

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
pub(super) mod recent;
pub(super) mod sysfs;
