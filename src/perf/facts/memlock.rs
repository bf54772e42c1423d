//! How much memory this process may pin, and how much a stream pins.

use rustix::process::{Resource, getrlimit};

use crate::{StreamConfig, perf::messages::MemlockFacts};

/// Reads the limit of this process, and calculates what one end of a stream with these settings pins.
#[cfg(feature = "rdma")]
pub(super) fn read(config: &StreamConfig) -> MemlockFacts {
    use crate::transport::{LocalPorts, Memlock};

    let limit = getrlimit(Resource::Memlock).current;
    let demand = LocalPorts::demand(config);
    MemlockFacts {
        limit,
        needed: demand.wanted,
        least: demand.least,
        is_privileged: limit.is_some() && Memlock::now().limit.is_none(),
    }
}

/// Reads the limit of this process. A build without RDMA pins nothing.
#[cfg(not(feature = "rdma"))]
pub(super) fn read(_config: &StreamConfig) -> MemlockFacts {
    MemlockFacts {
        limit: getrlimit(Resource::Memlock).current,
        needed: 0,
        least: 0,
        is_privileged: false,
    }
}
