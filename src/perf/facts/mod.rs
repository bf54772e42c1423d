//! What an agent finds out about its host, from procfs, sysfs and the device files.
//!
//! | file | what it finds out |
//! |---|---|
//! | [`host_roots`] | where the file systems of the kernel are mounted |
//! | [`processor`] | the processors, and the clock of the kernel |
//! | `devices` | the RDMA devices, and what this user may do with them |
//! | [`memlock`] | how much memory may be pinned |
//! | [`interfaces`] | the interfaces with an address |

mod devices;
pub(super) mod host_roots;
pub(super) mod interfaces;
mod memlock;
mod processor;
#[cfg(test)]
mod tests;

use std::time::{SystemTime, UNIX_EPOCH};

use self::host_roots::HostRoots;
use super::messages::{HostFacts, PerfOrder};
use crate::{
    StreamConfig,
    ssh::protocol::{AgentHello, EdgeDirection},
};

/// Finds out everything that rdperf checks about this host. Blocks for some milliseconds: it reads hundreds of small
/// files.
pub(crate) fn collect(order: &PerfOrder, hello: AgentHello) -> HostFacts {
    let config = order.stream.config(EdgeDirection::Both);
    collect_below(&HostRoots::default(), &config, hello)
}

/// Finds out the facts below `roots`. The limits of this process and its addresses are those of this host.
fn collect_below(roots: &HostRoots, config: &StreamConfig, hello: AgentHello) -> HostFacts {
    let found = devices::find(roots, config);
    HostFacts {
        hello,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        has_rdma_build: cfg!(feature = "rdma"),
        kernel: processor::kernel(),
        processor: processor::name(roots),
        processors: processor::count(),
        governor: processor::governor(roots),
        clock_source: processor::clock_source(roots),
        clock_ms: clock_ms(),
        memlock: memlock::read(config),
        devices: found.devices,
        no_rdma: found.no_rdma,
        addresses: interfaces::read(roots),
    }
}

/// Returns the time of this host's clock, in milliseconds since 1970.
fn clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}
