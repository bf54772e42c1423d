//! The RDMA data path: which pair of ports to use, how much memory to pin, and the frames over it.
//!
//! A chunk is one `write_with_imm` of header and payload from a registered slot of the sender's into a
//! slot that the receiver granted; the receiver has a small receive posted for each grant, whose
//! completion says that the frame is there. Slots are used in the order in which they are granted, so
//! the receiver knows where to look. Credits and everything else travel on the control connection.

mod attempt;
mod establish;
mod established;
mod link;
mod link_setup;
mod memlock;
mod pool;
mod ports;
mod receive_path;
mod renewal;
mod send_path;
mod steps;
#[cfg(test)]
mod tests;
mod unavailable;

pub(crate) use establish::LocalPorts;
pub(crate) use established::Established;
pub(crate) use unavailable::Unavailable;

use super::data::path::DataPath;

/// The RDMA data path.
pub(crate) struct Rdma;

impl DataPath for Rdma {
    type Send = send_path::RdmaSend;
    type Receive = receive_path::RdmaReceive;
}
