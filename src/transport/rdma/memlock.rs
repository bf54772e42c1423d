//! How much memory may be pinned, and which pool fits into it.
//!
//! The kernel counts every page of every registered region against `RLIMIT_MEMLOCK` of the process: whole pages, and
//! shared pages twice. It shows the sum as `VmPin`. `CAP_IPC_LOCK` exempts a process, but only in the first user
//! namespace: root in a container is not exempt.

use std::{fs, path::Path};

use rustix::process::{Resource, getrlimit};

use super::ports::device::Roots;
use crate::{
    Direction, MIN_CHUNK_BYTES, MIN_DEPTH, printable, transport::data::frame::HEADER_BYTES,
};

/// The most memory that one end of a stream pins, in bytes. It holds more than a millisecond's traffic at 100 Gbit/s,
/// which is hundreds of round trips within a site, and a hundred streams fit into a machine.
pub(crate) const DEFAULT_CAP_BYTES: u64 = 16 << 20;

/// The most memory that one end of a stream with several rails pins for all of them, in bytes: 64 MiB of chunks, and
/// what lies around them.
const RAILS_CAP_BYTES: u64 = 72 << 20;

/// The least memory for which a stream gets one more rail, in bytes.
const LEAST_RAIL_BYTES: u64 = 2 << 20;

/// What the queues of one link pin beside the pools, in bytes: a completion queue of up to 1,024 entries of 64 bytes,
/// which is enough for a depth of 509, and as much again for work queues and doorbells. rxe pins none of it.
pub(crate) const RING_BYTES: u64 = 128 << 10;

/// The part of what may be pinned, as a divisor, that an express path may take: a stream with little memory needs it
/// for its chunks.
const EXPRESS_PART: u64 = 8;

/// The depth below which the chunk size is reduced first: one slot is filled, one is sent, one is read.
const GOOD_DEPTH: usize = 3;

/// The chunk size below which the depth is reduced first. Below it, an operation costs more than its bytes.
const GOOD_CHUNK_BYTES: usize = 64 << 10;

/// How much memory this process may pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memlock {
    /// The limit in bytes; `None` if there is no limit, or if the process is exempt.
    pub(crate) limit: Option<u64>,
    /// The memory that the process has pinned already, in bytes.
    pub(crate) pinned: u64,
    /// The most that each rail of one end of a stream should pin, in bytes, with its queues.
    pub(crate) cap: u64,
    /// The number of rails that share what may be pinned.
    pub(crate) rails: u64,
    /// The size of a page, in bytes. Regions are counted in pages.
    pub(crate) page: u64,
    /// The memory of one end of a stream for other uses than its pools, in bytes.
    pub(crate) reserved: u64,
}

/// Not even the smallest pool can be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot pin {}: the memlock limit is {}{}; raise `ulimit -l`",
    size(*.needed), size(*.limit), taken(*.pinned)
)]
pub(crate) struct TooSmall {
    /// The size of the smallest pool, in bytes.
    pub(crate) needed: u64,
    /// The limit, in bytes.
    pub(crate) limit: u64,
    /// The memory that is pinned already, in bytes.
    pub(crate) pinned: u64,
}

/// How much memory one end of a stream pins, whatever the process may pin.
#[cfg(feature = "cli")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PinDemand {
    /// The memory for the pools and the express path that were asked for, in bytes, within [`DEFAULT_CAP_BYTES`].
    pub(crate) wanted: u64,
    /// The memory for the smallest pools, in bytes.
    pub(crate) least: u64,
}

#[cfg(feature = "cli")]
impl PinDemand {
    /// Returns the demand of an end with these pools and an express path of `express_bytes`.
    pub(crate) fn new(
        chunk_bytes: usize,
        depth: usize,
        direction: Direction,
        express_bytes: Option<usize>,
    ) -> Self {
        let mut memlock = Memlock {
            limit: None,
            pinned: 0,
            cap: DEFAULT_CAP_BYTES,
            rails: 1,
            page: rustix::param::page_size() as u64,
            reserved: 0,
        };
        let least = memlock.needed(MIN_CHUNK_BYTES, MIN_DEPTH, direction);
        if let Some(bytes) = express_bytes {
            memlock.reserve_express(bytes);
        }
        let wanted = match fit(chunk_bytes, depth, direction, &memlock) {
            Ok((chunk_bytes, depth)) => memlock.needed(chunk_bytes, depth, direction),
            Err(_) => least,
        };
        Self {
            wanted: wanted + memlock.reserved,
            least,
        }
    }
}

impl Memlock {
    /// Reads the limit of this process, and what it has pinned now.
    pub(crate) fn now() -> Self {
        Self::read(&Roots::default().proc, getrlimit(Resource::Memlock).current)
    }

    fn read(proc: &Path, limit: Option<u64>) -> Self {
        let status = fs::read_to_string(proc.join("self/status")).unwrap_or_default();
        let users = fs::read_to_string(proc.join("self/uid_map")).unwrap_or_default();
        let exempt = has_ipc_lock(&status) && is_first_namespace(&users);
        Self {
            limit: limit.filter(|_| !exempt),
            pinned: pinned(&status),
            cap: DEFAULT_CAP_BYTES,
            rails: 1,
            page: rustix::param::page_size() as u64,
            reserved: 0,
        }
    }

    /// Keeps room for an express path with `bytes` of memory, and its queues, if they are a small part of what may be
    /// pinned. Returns true if they are.
    pub(crate) fn reserve_express(&mut self, bytes: usize) -> bool {
        let reserved = (bytes as u64).next_multiple_of(self.page) + RING_BYTES;
        let is_small = reserved <= self.budget() / EXPRESS_PART;
        if is_small {
            self.reserved = reserved;
        }
        is_small
    }

    /// Divides what one end of a stream may pin among so many rails; `None` if several of them have no room.
    pub(crate) fn divided(&self, rails: u8) -> Option<Self> {
        let rails = u64::from(rails.max(1));
        let cap = self.cap.min(RAILS_CAP_BYTES / rails);
        let divided = Self {
            cap,
            rails,
            ..*self
        };
        (rails == 1 || divided.most() / rails >= LEAST_RAIL_BYTES).then_some(divided)
    }

    /// Returns how much one end of a stream may pin, in bytes.
    fn most(&self) -> u64 {
        let left = self
            .limit
            .map_or(u64::MAX, |l| l.saturating_sub(self.pinned));
        left.min(self.cap * self.rails)
    }

    /// Returns how much each rail of one end of a stream may pin, in bytes. All rails make room for the express path of
    /// the first one, because all have pools of the same size.
    fn budget(&self) -> u64 {
        self.most().saturating_sub(self.reserved) / self.rails
    }

    /// Returns how much one end of a stream pins, in bytes.
    pub(crate) fn needed(&self, chunk_bytes: usize, depth: usize, direction: Direction) -> u64 {
        let slot = ((HEADER_BYTES + chunk_bytes) as u64).next_multiple_of(self.page);
        // Each slot that is written to has a small receive posted, in a region of its own.
        let pools = match direction {
            Direction::Send => slot,
            Direction::Receive => slot + self.page,
            Direction::Both => 2 * slot + self.page,
        };
        pools
            .saturating_mul(depth as u64)
            .saturating_add(self.beside_pools())
    }

    /// Returns what one end of a stream pins beside its pools, in bytes: queues, and the page into which the peer
    /// writes its nudges.
    fn beside_pools(&self) -> u64 {
        RING_BYTES + self.page
    }
}

/// Returns the chunk size and depth that fit. If the requested ones do not, it reduces the depth down to 3 slots, then
/// the chunk size down to 64 KiB, then the depth to 2, then the chunk size down to the smallest.
/// Fails when [`MIN_DEPTH`] slots of [`MIN_CHUNK_BYTES`] do not fit into the limit. (The cap gives way.)
pub(crate) fn fit(
    chunk_bytes: usize,
    depth: usize,
    direction: Direction,
    memlock: &Memlock,
) -> Result<(usize, usize), TooSmall> {
    let depth_of = |chunk| deepest(chunk, depth, direction, memlock);
    let good_depth = depth.min(GOOD_DEPTH);
    let mut chunk = chunk_bytes.max(MIN_CHUNK_BYTES);
    while chunk > GOOD_CHUNK_BYTES && depth_of(chunk) < good_depth {
        chunk = halved(chunk).max(GOOD_CHUNK_BYTES);
    }
    while chunk > MIN_CHUNK_BYTES && depth_of(chunk) < MIN_DEPTH {
        chunk = halved(chunk);
    }
    let depth = depth_of(chunk);
    if depth >= MIN_DEPTH {
        return Ok((chunk, depth));
    }
    let needed = memlock.needed(MIN_CHUNK_BYTES, MIN_DEPTH, direction);
    let Memlock { limit, pinned, .. } = *memlock;
    match limit {
        Some(limit) if needed > limit.saturating_sub(pinned) => Err(TooSmall {
            needed,
            limit,
            pinned,
        }),
        _ => Ok((MIN_CHUNK_BYTES, MIN_DEPTH)),
    }
}

/// Returns the reason why [`fit`] returns less than requested, if it does.
pub(crate) fn why_smaller(
    chunk_bytes: usize,
    depth: usize,
    direction: Direction,
    memlock: &Memlock,
) -> Option<String> {
    let wanted = (chunk_bytes, depth);
    let fitted = |memlock: &Memlock| fit(chunk_bytes, depth, direction, memlock).ok();
    let unlimited = Memlock {
        limit: None,
        ..*memlock
    };
    let (fitting, unlimited) = (fitted(memlock)?, fitted(&unlimited)?);
    let cause = match memlock.limit {
        Some(limit) if fitting != unlimited => {
            let taken = taken(memlock.pinned);
            format!("the memlock limit (`ulimit -l`) is {}{taken}", size(limit))
        }
        _ if fitting != wanted => {
            format!(
                "one end of a stream pins at most {}",
                size(memlock.cap * memlock.rails)
            )
        }
        _ => return None,
    };
    Some(format!(
        "less than the {} bytes, {depth} at once, that were wanted: {cause}",
        printable::size(chunk_bytes as u64)
    ))
}

/// Returns the largest depth that fits, at most `wanted`.
fn deepest(chunk: usize, wanted: usize, direction: Direction, memlock: &Memlock) -> usize {
    let per_slot = memlock.needed(chunk, 1, direction) - memlock.beside_pools();
    let fitting = memlock.budget().saturating_sub(memlock.beside_pools()) / per_slot;
    usize::try_from(fitting)
        .unwrap_or(usize::MAX)
        .min(wanted.max(MIN_DEPTH))
}

/// Returns half of a chunk size in whole KiB, at least the smallest.
fn halved(chunk: usize) -> usize {
    (chunk / 2 / 1024 * 1024).max(MIN_CHUNK_BYTES)
}

/// Returns true if the process has `CAP_IPC_LOCK`, bit 14.
fn has_ipc_lock(status: &str) -> bool {
    let mask = field(status, "CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    mask.is_some_and(|mask| mask >> 14 & 1 == 1)
}

/// Returns true in the first user namespace, the only one that maps every user to itself, or if nothing is known.
fn is_first_namespace(uid_map: &str) -> bool {
    let numbers: Vec<&str> = uid_map.split_whitespace().collect();
    numbers.is_empty() || numbers == ["0", "0", "4294967295"]
}

fn pinned(status: &str) -> u64 {
    let kilobytes = field(status, "VmPin:").and_then(|text| text.parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes.saturating_mul(1024))
}

/// Returns the first word after `name` at the beginning of a line.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()
}

/// Formats a size in whole KiB or MiB, as `ulimit -l` counts.
fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 && bytes % (1 << 20) == 0 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes.div_ceil(1024))
    }
}

fn taken(pinned: u64) -> String {
    match pinned {
        0 => String::new(),
        _ => format!(", of which {} are taken", size(pinned)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        MAX_CHUNK_BYTES, MAX_DEPTH,
        config::{ONE_PROCESSOR_POOL, POOL},
        transport::rdma::ports::fixtures::FakeSystem,
    };

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    fn limited(limit: u64) -> Memlock {
        Memlock {
            limit: Some(limit),
            pinned: 0,
            cap: DEFAULT_CAP_BYTES,
            rails: 1,
            page: 4096,
            reserved: 0,
        }
    }

    fn status(capabilities: u64, pinned: u64) -> String {
        format!("Name:\trdsend\nVmPin:\t{pinned:8} kB\nCapInh:\t0\nCapEff:\t{capabilities:016x}\n")
    }

    fn read(status: &str, uid_map: &str, limit: Option<u64>) -> (Option<u64>, u64) {
        let tree = FakeSystem::new();
        tree.write("proc/self/status", status);
        tree.write("proc/self/uid_map", uid_map);
        let memlock = Memlock::read(&tree.roots().proc, limit);
        (memlock.limit, memlock.pinned)
    }

    const FIRST: &str = "         0          0 4294967295\n";
    const CONTAINER: &str = "         0     100000      65536\n";

    #[test]
    fn the_capability_lifts_the_limit_but_not_in_a_container() {
        let limit = Some(8 * MIB);
        assert_eq!(read(&status(0x1ff_ffff_ffff, 0), FIRST, limit), (None, 0));
        assert_eq!(read(&status(1 << 14, 12), FIRST, limit), (None, 12 * KIB));
        assert_eq!(
            read(&status(!(1 << 14), 12), FIRST, limit),
            (limit, 12 * KIB)
        );
        assert_eq!(read(&status(1 << 14, 0), CONTAINER, limit), (limit, 0));
        assert_eq!(read("", "", limit), (limit, 0));
        assert_eq!(read("", "", None), (None, 0));
        assert_eq!(read("CapEff:\nVmPin:\tmuch\n", FIRST, limit), (limit, 0));
    }

    #[cfg(feature = "cli")]
    #[test]
    fn the_demand_of_a_stream_fits_into_a_limit_of_that_size() {
        let demand = PinDemand::new(2 << 20, 4, Direction::Both, Some(280 << 10));
        assert!(demand.wanted <= DEFAULT_CAP_BYTES && demand.wanted > 8 * MIB);
        let mut exact = limited(demand.wanted);
        assert!(exact.reserve_express(280 << 10));
        assert_eq!(fit(2 << 20, 4, Direction::Both, &exact), Ok((2 << 20, 3)));
        let (least, below) = (limited(demand.least), limited(demand.least - 1));
        assert!(fit(2 << 20, 4, Direction::Both, &least).is_ok());
        assert!(fit(2 << 20, 4, Direction::Both, &below).is_err());
    }

    #[test]
    fn this_process_has_some_limit() {
        assert!(Memlock::now().page >= 4096);
    }

    #[test]
    fn the_default_stays_within_its_cap() {
        let free = Memlock {
            limit: None,
            ..limited(0)
        };
        let fit = |(chunk, depth), direction| fit(chunk, depth, direction, &free).unwrap();
        assert_eq!(fit(POOL, Direction::Send), POOL);
        assert_eq!(fit(POOL, Direction::Receive), POOL);
        assert_eq!(fit(POOL, Direction::Both), (POOL.0, 3));
        assert_eq!(fit(ONE_PROCESSOR_POOL, Direction::Both), ONE_PROCESSOR_POOL);
    }

    #[test]
    fn rails_share_what_may_be_pinned() {
        let unlimited = Memlock {
            limit: None,
            ..limited(0)
        };
        let with_express = |mut memlock: Memlock| {
            memlock.reserve_express(300 << 10);
            memlock
        };
        for end in [
            unlimited,
            with_express(unlimited),
            with_express(limited(24 * MIB)),
        ] {
            let divided = |rails| Some((rails, end.divided(rails)?));
            for (rails, each) in (1..=32).map_while(divided) {
                let (chunk, depth) = fit(POOL.0, POOL.1, Direction::Both, &each).unwrap();
                let pools = u64::from(rails) * each.needed(chunk, depth, Direction::Both);
                let all = pools + each.reserved;
                let most = end.limit.unwrap_or(RAILS_CAP_BYTES);
                assert!(all <= most, "{rails} rails pin {all}");
            }
        }
        // As many rails as each have room for chunks, with an express path or without one.
        let most = |limit| {
            let rails = |memlock: Memlock| (1..).map_while(|rails| memlock.divided(rails)).count();
            let [plain, express] = [limited(limit), with_express(limited(limit))].map(rails);
            assert_eq!(plain, express, "{limit}");
            plain
        };
        assert_eq!([most(64 << 10), most(8 * MIB), most(16 * MIB)], [1, 4, 8]);
        let divided = with_express(unlimited).divided(8).unwrap();
        assert_eq!(fit(POOL.0, POOL.1, Direction::Send, &divided), Ok(POOL));
    }

    #[test]
    fn the_express_path_takes_a_small_part_only() {
        let fits = |limit| limited(limit).reserve_express(300 << 10);
        assert!(fits(16 * MIB) && fits(4 * MIB));
        assert!(!fits(2 * MIB) && !fits(64 * KIB));
        let mut memlock = limited(64 * MIB);
        assert!(memlock.reserve_express(300 << 10));
        let (chunk, depth) = fit(POOL.0, POOL.1, Direction::Both, &memlock).unwrap();
        let pool = memlock.needed(chunk, depth, Direction::Both);
        assert!(pool + (300 << 10) + RING_BYTES <= DEFAULT_CAP_BYTES);
    }

    #[test]
    fn the_pool_shrinks_with_the_limit() {
        let fit = |limit, direction| fit(512 << 10, 16, direction, &limited(limit));
        assert_eq!(fit(4 * MIB, Direction::Send), Ok((512 << 10, 7)));
        assert_eq!(fit(4 * MIB, Direction::Both), Ok((512 << 10, 3)));
        assert_eq!(fit(MIB, Direction::Send), Ok((256 << 10, 3)));
        assert_eq!(fit(MIB, Direction::Both), Ok((128 << 10, 3)));
        assert_eq!(fit(448 * KIB, Direction::Both), Ok((64 << 10, 2)));
        assert_eq!(fit(256 * KIB, Direction::Both), Ok((16 << 10, 2)));
        assert_eq!(fit(172 * KIB, Direction::Both), Ok((4 << 10, 2)));
    }

    #[test]
    fn a_smaller_pool_names_what_made_it_so() {
        let why =
            |chunk, depth, memlock: &Memlock| why_smaller(chunk, depth, Direction::Send, memlock);
        let free = Memlock {
            limit: None,
            ..limited(0)
        };
        let (chunk, depth) = POOL;
        assert_eq!(why(chunk, depth, &free), None);
        assert_eq!(why(chunk, depth, &limited(16 * MIB)), None);
        assert_eq!(
            why(chunk, depth, &limited(4 * MIB)).unwrap(),
            "less than the 2M bytes, 4 at once, that were wanted: the memlock limit (`ulimit -l`) is 4 MiB"
        );
        let crowded = Memlock {
            pinned: MIB,
            ..limited(4 * MIB)
        };
        let text = why(chunk, depth, &crowded).unwrap();
        assert!(
            text.ends_with("is 4 MiB, of which 1 MiB are taken"),
            "{text}"
        );
        let text = why(8 << 20, 8, &free).unwrap();
        assert!(
            text.ends_with("wanted: one end of a stream pins at most 16 MiB"),
            "{text}"
        );
        // Nothing fits: that is an error, and no smaller pool.
        assert_eq!(why(chunk, depth, &limited(64 * KIB)), None);
    }

    #[test]
    fn too_small_a_limit_is_an_error_with_the_remedy() {
        let error = fit(512 << 10, 16, Direction::Send, &limited(64 * KIB)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot pin 148 KiB: the memlock limit is 64 KiB; raise `ulimit -l`"
        );
        let crowded = Memlock {
            pinned: 7 * MIB + 1000 * KIB,
            ..limited(8 * MIB)
        };
        let error = fit(512 << 10, 16, Direction::Send, &crowded).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("limit is 8 MiB, of which 8168 KiB are taken;"),
            "{error}"
        );
    }

    #[test]
    fn the_cap_alone_refuses_nobody() {
        let frugal = Memlock {
            limit: None,
            cap: 0,
            ..limited(0)
        };
        assert_eq!(
            fit(512 << 10, 16, Direction::Both, &frugal),
            Ok((MIN_CHUNK_BYTES, MIN_DEPTH))
        );
    }

    #[test]
    fn the_guide_names_the_cap() {
        let said = format!("pins at most {}", size(DEFAULT_CAP_BYTES));
        for page in [
            include_str!("../../../README.md"),
            include_str!("../../../docs/rdma.md"),
        ] {
            assert!(page.contains(&said), "{said}");
        }
    }

    proptest! {
        #[test]
        fn what_is_said_to_fit_fits(
            chunk in MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES,
            depth in MIN_DEPTH..=MAX_DEPTH,
            direction in prop::sample::select(vec![Direction::Send, Direction::Receive, Direction::Both]),
            limit in prop_oneof![0..MIB, 0..64 * MIB, Just(u64::MAX)],
            pinned in prop_oneof![Just(0), 0..2 * MIB],
            page in prop::sample::select(vec![4096_u64, 16384, 65536]),
        ) {
            let memlock = Memlock { pinned, page, ..limited(limit) };
            let left = limit.saturating_sub(pinned);
            match fit(chunk, depth, direction, &memlock) {
                Ok((fitted, depth_fitted)) => {
                    let needed = memlock.needed(fitted, depth_fitted, direction);
                    prop_assert!(needed <= left && needed <= DEFAULT_CAP_BYTES);
                    prop_assert!((MIN_CHUNK_BYTES..=chunk).contains(&fitted));
                    prop_assert!((MIN_DEPTH..=depth).contains(&depth_fitted));
                    // Nothing is given up without need.
                    let deeper = memlock.needed(fitted, depth_fitted + 1, direction);
                    prop_assert!(depth_fitted == depth || deeper > left.min(DEFAULT_CAP_BYTES));
                    prop_assert!(depth_fitted >= depth.min(GOOD_DEPTH) || fitted <= GOOD_CHUNK_BYTES);
                }
                Err(error) => {
                    prop_assert_eq!(error.needed, memlock.needed(MIN_CHUNK_BYTES, MIN_DEPTH, direction));
                    prop_assert!(error.needed > left);
                }
            }
        }
    }
}
