//! How a server divides its memory between its copies.

use crate::{
    MIN_CHUNK_BYTES, MIN_DEPTH, RdmaConfig, StreamConfig,
    copy::{
        budget::AGENT_BYTES,
        supervised::{LEAST_LANES, suitable_lanes},
    },
};

/// The memory of a copy beside its lanes and lists: its session with 1 MiB of unread messages, its control stream with
/// a question of 1 MiB, its threads.
const COPY_BYTES: u64 = 3 << 20;

/// The least memory for the lists of a copy: 50,000 names of one directory for `--delete`, say.
const LEAST_LIST_BYTES: u64 = 512 << 10;

/// The most memory for the lists of a copy, as an agent that ssh has started has it.
const MOST_LIST_BYTES: u64 = AGENT_BYTES as u64;

/// The smallest chunk of a lane: below it, system calls cost more than the data.
const LEAST_CHUNK_BYTES: usize = 64 << 10;

/// The pool of a lane that no default takes: with less, more lanes gain nothing.
const GOOD_LANE_BYTES: usize = 1 << 20;

/// The fewest chunks of a lane: one is filled, one is in flight, and two keep both ends busy.
const LEAST_DEPTH: usize = 4;

/// The settings of the streams of one copy, so that all copies together keep to the memory of the server.
#[derive(Debug)]
pub(super) struct CopyPools {
    pub(super) lane: StreamConfig,
    /// The settings of the control stream, which carries questions and answers.
    pub(super) control: StreamConfig,
    /// The memory for the lists of a copy: half of what its lanes and lists share.
    pub(super) list_bytes: usize,
}

impl CopyPools {
    /// Divides `memory` bytes between `clients` copies of at most `lanes` lanes.
    /// Fails if the memory is too small.
    pub(super) fn divide(
        memory: u64,
        clients: u16,
        lanes: usize,
        settings: StreamConfig,
    ) -> Result<Self, String> {
        let copies = u64::from(clients);
        let share = (memory / copies).saturating_sub(COPY_BYTES);
        let list_bytes = (share / 2).min(MOST_LIST_BYTES);
        let data_bytes = share.saturating_sub(list_bytes.max(LEAST_LIST_BYTES));
        let list_bytes = list_bytes.max(LEAST_LIST_BYTES);
        let lane_bytes = usize::try_from(data_bytes / lanes as u64).unwrap_or(usize::MAX);
        if lane_bytes < LEAST_CHUNK_BYTES * LEAST_DEPTH {
            let least =
                (COPY_BYTES + LEAST_LIST_BYTES + (LEAST_CHUNK_BYTES * LEAST_DEPTH * lanes) as u64)
                    * copies;
            return Err(format!(
                "{clients} copies of {lanes} lanes need at least -m {}M; give more memory, or fewer --max-clients or --lanes",
                least.div_ceil(1 << 20)
            ));
        }
        let (chunk_bytes, depth) = pool(lane_bytes, settings.chunk_bytes, settings.depth);
        let (rdma_chunk, rdma_depth) =
            pool(lane_bytes, settings.rdma.chunk_bytes, settings.rdma.depth);
        let control = StreamConfig {
            chunk_bytes: LEAST_CHUNK_BYTES,
            depth: LEAST_DEPTH,
            rdma: RdmaConfig {
                chunk_bytes: LEAST_CHUNK_BYTES,
                depth: LEAST_DEPTH,
                ..settings.rdma.clone()
            },
            ..settings.clone()
        };
        let lane = StreamConfig {
            chunk_bytes,
            depth,
            rdma: RdmaConfig {
                chunk_bytes: rdma_chunk,
                depth: rdma_depth,
                ..settings.rdma
            },
            ..settings
        };
        let list_bytes = usize::try_from(list_bytes).unwrap_or(usize::MAX);
        Ok(Self {
            lane,
            control,
            list_bytes,
        })
    }
}

/// Returns the most lanes of a copy where the user gives no number, on a host that this number of streams suits: as many
/// as have good pools, as `divide` divides the memory.
pub(super) fn most_lanes(streams: u16, divide: impl Fn(usize) -> Result<CopyPools, String>) -> u16 {
    let is_good = |lanes: &u16| {
        let pools = divide(usize::from(*lanes));
        pools.is_ok_and(|CopyPools { lane, .. }| lane.chunk_bytes * lane.depth >= GOOD_LANE_BYTES)
    };
    let fewer = LEAST_LANES..=suitable_lanes(streams);
    fewer.rev().find(is_good).unwrap_or(LEAST_LANES)
}

/// Returns the chunk size and the depth of a pool that fits into so many bytes, and is not larger than wanted.
fn pool(bytes: usize, wanted_chunk: usize, wanted_depth: usize) -> (usize, usize) {
    let mut chunk = wanted_chunk.max(MIN_CHUNK_BYTES);
    let least_depth = LEAST_DEPTH.min(wanted_depth).max(MIN_DEPTH);
    while chunk > LEAST_CHUNK_BYTES && bytes / chunk < least_depth {
        chunk /= 2;
    }
    (chunk, (bytes / chunk).clamp(MIN_DEPTH, wanted_depth))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn divided(memory: u64, clients: u16, lanes: usize) -> Result<CopyPools, String> {
        CopyPools::divide(memory, clients, lanes, StreamConfig::default())
    }

    #[test]
    fn enough_memory_gives_the_pools_of_every_other_copy() {
        let lane = divided(4 << 30, 64, 2).unwrap().lane;
        let default = StreamConfig::default();
        assert_eq!(
            (lane.chunk_bytes, lane.depth),
            (default.chunk_bytes, default.depth)
        );
        assert_eq!(lane.rdma.depth, default.rdma.depth);
    }

    #[test]
    fn a_server_allows_as_many_lanes_as_have_good_pools() {
        let most = |streams, memory| most_lanes(streams, |lanes| divided(memory, 64, lanes));
        assert_eq!(
            [1, 4, 8, 64].map(|streams| most(streams, 2 << 30)),
            [2, 4, 8, 8]
        );
        let shrinking = [1024, 640, 512, 256].map(|mib| most(8, mib << 20));
        assert_eq!(shrinking, [6, 3, 2, 2]);
    }

    #[test]
    fn too_little_memory_is_refused_with_the_least_that_works() {
        let why = divided(1 << 20, 64, 2).unwrap_err();
        assert!(why.contains("at least -m 256M"), "{why}");
        assert!(divided(256 << 20, 64, 2).is_ok());
        assert!(divided((256 << 20) - (1 << 16), 64, 2).is_err());
    }

    proptest! {
        #[test]
        fn all_lanes_together_fit(memory in 1_u64..1 << 40, clients in 1_u16..4096, lanes in 1_usize..16) {
            if let Ok(CopyPools { lane, control, list_bytes }) = divided(memory, clients, lanes) {
                let pools = [
                    lane.chunk_bytes * lane.depth,
                    lane.rdma.chunk_bytes * lane.rdma.depth,
                ];
                for pool in pools {
                    let all = (pool * lanes + list_bytes) as u64 + COPY_BYTES;
                    prop_assert!(all * u64::from(clients) <= memory, "{pool}");
                }
                // The control stream has a pool in each direction.
                let control = control.rdma.chunk_bytes * control.rdma.depth * 2;
                prop_assert!((control as u64) < COPY_BYTES);
                prop_assert!(lane.depth >= MIN_DEPTH && lane.rdma.depth >= MIN_DEPTH);
            }
        }
    }
}
