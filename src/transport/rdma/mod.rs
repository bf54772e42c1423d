//! The RDMA data path: which pair of ports to use, how much memory to register, and the frames.
//!
//! A chunk is one `write_with_imm` of header and payload from a registered slot of the sender into a slot that the
//! receiver granted. For each grant the receiver has posted a small receive, whose completion says that the frame has
//! arrived. Slots are used in the order in which they are granted, so the receiver finds the frame in the next granted
//! slot. Small frames cross a second queue pair, the express path, without slots; each header says which frame it
//! follows, and the receiver takes the frames of both in this order. Credits and all messages travel on the control
//! connection.
//!
//! A stream of several rails has a link for each, and the first one the express path: small messages stay on it. The
//! completions of a link are polled in the runtime of its rail's thread.
//!
//! A receive is posted before its slot is granted, so every write finds a receive. A reliable connection completes in
//! order, so the sender only looks at its oldest write. The header is copied before it is checked, once, because the
//! peer can rewrite it: all that follows uses the copy. A peer that writes into a slot that it was not granted damages
//! its own stream only: the receiver verifies the bytes that are there. A peer that breaks the protocol can rewrite a
//! chunk while the user reads it; with `StreamConfig::copy_received` a frame is copied to memory of its own before it
//! is verified. The sending pool is registered for local use only, and a one-way stream has one pool.

mod establish;
mod express;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(feature = "cli")]
mod late;
mod link;
mod link_setup;
mod memlock;
mod nudge;
mod pool;
mod ports;
mod receive_path;
mod renewal;
mod send_path;
#[cfg(test)]
mod tests;
mod verbs;

pub(crate) use super::data::slots::Unavailable;
pub(crate) use establish::{Established, LocalPorts};
#[cfg(feature = "cli")]
pub(crate) use memlock::Memlock;
#[cfg(feature = "cli")]
pub(crate) use ports::device::{Device, GidEntry, Inventory, Port, Roots};

/// What measurements use below the data path: queue pairs, and the ports that they are made on.
#[cfg(feature = "cli")]
pub(crate) mod raw {
    pub(crate) use crate::transport::control::noise::Role;

    pub(crate) use super::{
        ports::{
            device::{MTUS, inventory},
            network::GidKind,
            offer::{Candidate, DeviceChoice, MAX_OFFERS, Offers, networks_differ},
            proposal::{rank, share_network, to_try},
        },
        verbs::{
            device::{Completion, CompletionQueue, ProtectionDomain},
            memory::{MemoryRegion, RemoteRegion},
            operation::{OperationKind, PairFault, VerbsOperation, most_inline},
            queue_pair::{QueuePair, QueuePairAddress, QueuePairConfig, QueueSizes, random_psn},
        },
    };
}

/// What [`crate::verbs`] shows.
pub(crate) mod open {
    pub use super::verbs::{
        device::{Completion, CompletionQueue, ProtectionDomain},
        memory::{MemoryRegion, RemoteRegion},
        operation::{OperationKind, PairFault, VerbsOperation},
        queue_pair::{QueuePair, QueuePairAddress, QueuePairConfig, QueueSizes, ReadDepths},
    };
}

use std::{sync::Once, thread};

use super::data::slots::DataPath;
use crate::{StreamConfig, TransportPolicy};

/// Loads what the first queue pair of this process needs, on a thread of its own, if there may be one and the host has
/// a device: libibverbs and the drivers of the devices. A listener does it before its first peer connects, and a dialer
/// while it connects.
pub(crate) fn prepare(config: &StreamConfig) {
    static PREPARED: Once = Once::new();
    let load = || {
        if ports::device::inventory().ports().next().is_some() {
            verbs::device::load_drivers();
        }
    };
    let start = || {
        // Without a thread the first queue pair loads them.
        let _ = thread::Builder::new()
            .name("drivers".to_owned())
            .spawn(load);
    };
    if config.transport != TransportPolicy::Tcp {
        PREPARED.call_once(start);
    }
}

/// The RDMA data path.
pub(crate) struct Rdma;

impl DataPath for Rdma {
    type Send = send_path::RdmaSend;
    type Receive = receive_path::RdmaReceive;
}
