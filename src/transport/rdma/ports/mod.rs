//! The RDMA ports of this host, and which pair of ports two hosts should use.
//!
//! The control connection uses the address by which the host is *named*; the data uses the fastest network. Hello
//! carries the dialer's usable ports, fast ones first. The acceptor ranks the pairs and proposes up to three, one for
//! each pair of ports: first the best pair, then pairs that share no port with it, because the port itself may be the
//! fault. Only ports of one kind are paired: InfiniBand within a subnet prefix, RoCE v1 with v1. The path MTU is the
//! smaller of the two. If no proposed pair shares a network, the proposal says so, and that becomes the reason which
//! the user reads if all pairs fail.
//!
//! The settings that name a device, a port, a GID or a partition key restrict an end's own list. Naming something that
//! does not exist is an error at once, also where TCP would do. Naming something that exists but cannot be used now is
//! a reason for TCP.

pub(super) mod device;
#[cfg(test)]
pub(super) mod fixtures;
pub(super) mod network;
pub(super) mod offer;
pub(super) mod proposal;
