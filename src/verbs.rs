//! RDMA verbs without a stream: queue pairs, registered memory and completions, for programs that post their own SENDs,
//! WRITEs and READs.
//!
//! In the order of their use:
//!
//! | type | what it is |
//! |---|---|
//! | [`QueuePairConfig`] | a port of this host, and the parameters of a connection |
//! | [`ProtectionDomain`] | an open device; memory, completion queues and queue pairs of one domain can be used together |
//! | [`MemoryRegion`] | pinned memory that the device reads and writes |
//! | [`CompletionQueue`], [`Completion`] | the results of work requests |
//! | [`QueuePair`], [`QueueSizes`] | a reliable connection: a queue of sends and one of receives |
//! | [`QueuePairAddress`], [`ReadDepths`] | what the peer has to know to connect |
//! | [`VerbsOperation`], [`OperationKind`] | a work request: SEND, WRITE or READ; signalled or not; inline or not |
//! | [`RemoteRegion`] | address and key of a region, for the peer that writes and reads it |
//!
//! `docs/verbs.md` explains each step, with the two examples `verbs_send_recv` and `verbs_write_read`.
//!
//! These types authenticate no peer and check no byte: a peer that has a [`RemoteRegion`] writes into memory of this
//! process. Exchange addresses over a [`Stream`](crate::Stream) with
//! [`TransportPolicy::Tcp`](crate::TransportPolicy::Tcp), whose handshake proves that the peer has the key. Every safe
//! call is sound whatever the peer does: memory outlives the device's use of it, and no reference to it is made.
//!
//! The functions block the thread for as long as the device needs; [`CompletionQueue::wait_event`] also waits. A
//! [`CompletionQueue`] has a file descriptor for programs with an event loop.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use rdpipe::{RdmaConfig, verbs::*};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = QueuePairConfig::choose(&RdmaConfig::default())?;
//! let domain = Arc::new(ProtectionDomain::open(&config.device)?);
//! let memory = MemoryRegion::register(&domain, 4096)?;
//! let completions = Arc::new(CompletionQueue::new(&domain, 32)?);
//! let sizes = QueueSizes { sends: 16, receives: 16, inline_bytes: 64 };
//! let pair = QueuePair::new(&completions, memory, &config, sizes)?;
//! println!("{} waits for its peer", pair.address(&config)?);
//! # Ok(())
//! # }
//! ```

pub use crate::transport::open::{
    Completion, CompletionQueue, MemoryRegion, OperationKind, PairFault, ProtectionDomain,
    QueuePair, QueuePairAddress, QueuePairConfig, QueueSizes, ReadDepths, RemoteRegion,
    VerbsOperation,
};
