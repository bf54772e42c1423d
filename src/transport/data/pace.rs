//! How much is queued at once: little enough that a small message, which is written behind bulk data, leaves soon.
//!
//! On a slow link a chunk of 512 KiB takes long (84 ms at 50 Mbit/s), and the kernel's send buffer has room for many of
//! them. So the rate of the link is measured, and a chunk is filled no further than with the bytes of [`PART`]. The
//! kernel holds as many that it has not sent: a limit of unsent bytes, so a long round trip has as many bytes under way
//! as before. Where that is more than a chunk, at 1 Gbit/s for example, nothing is limited.
//!
//! The rate is that at which the socket accepts bytes between two moments at which it is full: then as many have left.
//! A program that writes little does not fill it, and is not taken for a slow link. The highest of the last
//! measurements counts, because a delay of the peer is no slow link either. A socket that accepts much more than the
//! limit without being full has run dry, because the link is faster than it was or this process was late: the rate is
//! taken for twice as high.
//!
//! Each chunk needs a credit, and a credit takes a round trip to come back. So chunks are large enough that fewer than
//! half of the credits that the peer does not hold back are enough for the bytes under way: otherwise the credits would
//! limit the rate of a link with a long round trip.
//!
//! Pure: the caller passes the time.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use super::frame::credit_batch;

/// The time that the bytes of a chunk take on the link. A small message waits for two chunks, for a part of the next
/// one and for what the kernel holds: about 20 ms.
const PART: Duration = Duration::from_millis(5);

/// The fewest bytes of a chunk that is filled: with smaller ones, headers and system calls would be a burden.
const LEAST_BYTES: usize = 16 << 10;

/// The time of one measurement: several times that of a part, so that the steps in which the kernel accepts bytes
/// matter little.
const WINDOW: Duration = Duration::from_millis(20);

/// The number of measurements of which the highest counts. They take 320 ms or more: longer than BBR sends next to
/// nothing, every ten seconds, to measure the round trip.
const WINDOWS: usize = 16;

/// A pause after which the socket may have been idle: what has left since the last measurement says nothing about the
/// link.
const IDLE: Duration = Duration::from_millis(1);

/// The number of bytes beyond the limit that a socket may accept at once although it has not run dry. The kernel
/// exceeds the limit by less than one of its packets of 64 KiB, and one acknowledgement makes room for another one.
const STEP_BYTES: u64 = 128 << 10;

/// Measures the rate of a connection, and limits what is queued.
#[derive(Debug)]
pub(crate) struct Pace {
    chunk_bytes: usize,
    /// The number of credits while no chunk is under way.
    peer_slots: usize,
    /// The last rates, in bytes per second. None has been measured if all are 0.
    rates: [u64; WINDOWS],
    next: usize,
    /// The last moment at which the socket was full, and the bytes that it has accepted since.
    window: Option<(Instant, u64)>,
    /// The time at which the socket has accepted bytes; none if it has been full since.
    accepted_at: Option<Instant>,
    /// The bytes that the socket has accepted since it was full.
    unblocked: u64,
    /// The bytes of the last chunks, the newest last: at most as many as the peer has slots.
    posted: VecDeque<usize>,
    /// The bytes that the last chunk was filled with at most.
    room: usize,
    limit: Option<usize>,
}

impl Pace {
    /// The pace of a connection of unknown rate, for chunks of `chunk_bytes` and a peer with `peer_slots` slots.
    pub(crate) fn new(chunk_bytes: usize, peer_slots: usize) -> Self {
        Self {
            chunk_bytes,
            peer_slots,
            rates: [0; WINDOWS],
            next: 0,
            window: None,
            accepted_at: None,
            unblocked: 0,
            posted: VecDeque::new(),
            room: chunk_bytes,
            limit: None,
        }
    }

    /// Returns the number of bytes that leave in the time of [`PART`]; none if the link is not known to be slow.
    pub(super) fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// Returns the number of bytes that the next chunk is filled with at most. `credits` returns the number of credits
    /// that are left.
    pub(super) fn room(&mut self, credits: impl FnOnce() -> usize) -> usize {
        let Some(limit) = self.limit else {
            self.room = self.chunk_bytes;
            return self.room;
        };
        let batch = credit_batch(self.peer_slots);
        // The peer may hold back the credits of the oldest chunks, one fewer than a batch.
        let chunks = (self.peer_slots + 1).saturating_sub(credits() + batch);
        let under_way: usize = self.posted.iter().rev().take(chunks).sum();
        let enough = (self.peer_slots.saturating_sub(batch) * 3 / 8).max(1);
        // Just after a batch of credits has come, more is under way than that. So the room becomes smaller in steps.
        let step = self.room - self.room / 8;
        self.room = limit
            .max(under_way / enough)
            .max(step)
            .min(self.chunk_bytes);
        self.room
    }

    /// Records that a chunk of `count` bytes uses a credit.
    pub(super) fn posted(&mut self, count: usize) {
        if self.posted.len() >= self.peer_slots {
            self.posted.pop_front();
        }
        self.posted.push_back(count);
    }

    /// Records that the socket has accepted `count` bytes. Returns true if the limit has changed.
    pub(super) fn accepted(&mut self, count: usize, now: Instant) -> bool {
        let before = self.accepted_at.replace(now);
        if before.is_some_and(|before| now.duration_since(before) > IDLE) {
            self.window = None;
            self.unblocked = 0;
        }
        let count = count as u64;
        if let Some((_, bytes)) = &mut self.window {
            *bytes += count;
        }
        self.unblocked += count;
        let Some(limit) = self.limit else {
            return false;
        };
        if self.unblocked < limit as u64 + STEP_BYTES {
            return false;
        }
        self.unblocked = 0;
        self.measured(self.rate().saturating_mul(2))
    }

    /// Records that the socket is full. Returns true if the limit has changed.
    pub(super) fn blocked(&mut self, now: Instant) -> bool {
        self.accepted_at = None;
        self.unblocked = 0;
        let (since, bytes) = *self.window.get_or_insert((now, 0));
        let elapsed = now.duration_since(since);
        if elapsed < WINDOW || bytes == 0 {
            return false;
        }
        self.window = Some((now, 0));
        let rate = u128::from(bytes) * 1_000_000_000 / elapsed.as_nanos();
        self.measured(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    fn rate(&self) -> u64 {
        self.rates.into_iter().max().unwrap_or(0)
    }

    /// Records a rate. A change of the limit by less than a quarter is not worth a system call.
    fn measured(&mut self, rate: u64) -> bool {
        self.rates[self.next] = rate;
        self.next = (self.next + 1) % WINDOWS;
        let bytes = u128::from(self.rate()) * PART.as_nanos() / 1_000_000_000;
        let bytes = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .max(LEAST_BYTES);
        // A chunk of the whole size is no limit.
        let limit = (bytes < self.chunk_bytes).then_some(bytes);
        let is_near = |before: usize| bytes.abs_diff(before) <= before / 4;
        if self.limit.is_some_and(is_near) && limit.is_some() {
            return false;
        }
        mem::replace(&mut self.limit, limit) != limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 512 << 10;

    /// Bytes per second of 50 Mbit/s.
    const SLOW: u64 = 6_250_000;

    /// A connection that carries bulk data, with its own clock.
    struct Link {
        pace: Pace,
        now: Instant,
    }

    impl Link {
        fn new() -> Self {
            let (pace, now) = (Pace::new(CHUNK, 16), Instant::now());
            Self { pace, now }
        }

        /// Carries bulk data: the socket is full after each step of 2 ms.
        fn carry(&mut self, rate: u64, steps: u32) {
            for _ in 0..steps {
                self.step(rate, Duration::from_millis(2));
            }
        }

        /// Waits, accepts the bytes of 2 ms, and is full.
        fn step(&mut self, rate: u64, wait: Duration) {
            self.now += wait;
            let count = usize::try_from(rate / 500).unwrap();
            self.pace.accepted(count, self.now);
            self.pace.blocked(self.now);
        }

        fn milliseconds(&self, rate: u64) -> u64 {
            self.pace.limit().unwrap() as u64 * 1000 / rate
        }
    }

    #[test]
    fn a_chunk_of_a_slow_link_takes_a_few_milliseconds() {
        let mut link = Link::new();
        assert_eq!(link.pace.limit(), None, "nothing is known");
        assert_eq!(link.pace.room(|| 16), CHUNK);
        link.carry(SLOW, 100);
        assert!((4..=6).contains(&link.milliseconds(SLOW)));
        for _ in 0..100 {
            link.pace.room(|| 16);
        }
        assert_eq!(Some(link.pace.room(|| 16)), link.pace.limit());
        link.carry(SLOW / 1000, 1000);
        assert_eq!(link.pace.limit(), Some(LEAST_BYTES));
    }

    #[test]
    fn a_fast_link_is_not_limited() {
        let mut link = Link::new();
        link.carry(125_000_000, 1000);
        assert_eq!(link.pace.limit(), None);
    }

    #[test]
    fn a_delay_is_not_a_slow_link() {
        let mut link = Link::new();
        link.carry(SLOW, 200);
        let before = link.pace.limit();
        for _ in 0..100 {
            link.step(SLOW, Duration::from_millis(500));
            link.carry(SLOW, 100);
            assert_eq!(link.pace.limit(), before);
        }
    }

    /// A socket that is found full twice, for example by two tasks, says nothing.
    #[test]
    fn a_socket_that_accepts_nothing_is_not_measured() {
        let mut link = Link::new();
        for _ in 0..100 {
            link.now += WINDOW;
            link.pace.blocked(link.now);
        }
        assert_eq!(link.pace.limit(), None);
    }

    #[test]
    fn a_pause_of_the_program_is_not_measured() {
        let mut link = Link::new();
        link.carry(SLOW, 100);
        let before = link.pace.limit();
        for _ in 0..100 {
            link.pace.accepted(1000, link.now);
            link.now += Duration::from_millis(300);
            link.pace.accepted(1000, link.now);
            link.pace.blocked(link.now);
        }
        assert_eq!(link.pace.limit(), before);
    }

    /// A program that writes a third of what the link carries, in bursts, never fills the socket for long.
    #[test]
    fn a_slow_program_is_not_a_slow_link() {
        let mut link = Link::new();
        for _ in 0..1000 {
            for _ in 0..3 {
                link.pace.accepted(16 << 10, link.now);
            }
            link.pace.blocked(link.now);
            link.pace.accepted(16 << 10, link.now);
            link.now += Duration::from_millis(30);
        }
        assert_eq!(link.pace.limit(), None);
    }

    #[test]
    fn a_link_that_becomes_faster_is_found_to_be() {
        let mut link = Link::new();
        link.carry(SLOW, 100);
        link.carry(10 * SLOW, 100);
        assert!((4..=6).contains(&link.milliseconds(10 * SLOW)));
        link.carry(100 * SLOW, 20);
        assert_eq!(link.pace.limit(), None);
        link.carry(SLOW, 1000);
        assert!(link.pace.limit().is_some());
        // The socket is never full.
        for _ in 0..100 {
            link.pace.accepted(64 << 10, link.now);
        }
        assert_eq!(link.pace.limit(), None);
    }

    #[test]
    fn a_link_that_becomes_slower_is_found_to_be() {
        let mut link = Link::new();
        link.carry(20 * SLOW, 100);
        link.carry(SLOW, 400);
        assert!((4..=6).contains(&link.milliseconds(SLOW)));
    }

    /// Carries chunks with a round trip of `round_trip`. Returns the part of the time for which a credit was there.
    fn used(slots: usize, round_trip: Duration) -> f64 {
        let mut link = Link::new();
        let mut pace = Pace::new(CHUNK, slots);
        link.carry(SLOW, 100);
        pace.limit = link.pace.limit();
        let (batch, mut credits, mut held) = (credit_batch(slots), slots, 0);
        // The times at which the chunks under way are acknowledged, and that at which the link has carried them.
        let mut under_way: VecDeque<Duration> = VecDeque::new();
        let (mut now, mut carried) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..2000 {
            while credits == 0 || under_way.front().is_some_and(|back| *back <= now) {
                now = now.max(under_way.pop_front().expect("a chunk is under way"));
                held += 1;
                if held == batch {
                    credits += mem::take(&mut held);
                }
            }
            let room = pace.room(|| credits);
            assert!((pace.limit.unwrap()..=CHUNK).contains(&room));
            pace.posted(room);
            credits -= 1;
            let time = Duration::from_nanos(room as u64 * 1_000_000_000 / SLOW);
            carried += time;
            now += time;
            under_way.push_back(now + round_trip);
        }
        carried.as_secs_f64() / now.as_secs_f64()
    }

    #[test]
    fn a_long_round_trip_has_enough_bytes_under_way() {
        for (slots, round_trip) in [(16, 1), (16, 40), (16, 100), (16, 300), (4, 40), (4, 100)] {
            let used = used(slots, Duration::from_millis(round_trip));
            assert!(used > 0.9, "{slots} slots, {round_trip} ms: {used}");
        }
    }
}
