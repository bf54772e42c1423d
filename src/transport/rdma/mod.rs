//! The RDMA data path: which pair of ports to use, how much memory to pin, and the frames over it.
//!
//! A chunk is one `write_with_imm` of header and payload from a registered slot of the sender's into a
//! slot that the receiver granted; the receiver has a small receive posted for each grant, whose
//! completion says that the frame is there. Slots are used in the order in which they are granted, so
//! the receiver knows where to look. Credits and everything else travel on the control connection.

mod choice;
mod device;
mod establish;
mod explain;
#[cfg(test)]
mod fixtures;
mod gid;
mod link;
mod memlock;
mod network;
mod offer;
mod opening;
mod pool;
mod proposal;
mod rank;
mod recv;
mod renew;
mod renewal;
mod send;
mod steps;
mod sysfs;
#[cfg(test)]
mod tests;

pub(crate) use establish::{Ends, NoWay, Ours};

use super::path::DataPath;

/// The RDMA data path.
pub(crate) struct Rdma;

impl DataPath for Rdma {
    type Send = send::RdmaSend;
    type Receive = recv::RdmaReceive;
}
