//! Tests of the watch over the data path, with a clock and a data path that are made up.

use std::sync::{Arc, Mutex};

use super::*;
use crate::{Direction, Fault, transport::control::data_progress::StalledPath};

const SILENCE: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(4);

/// A data path that records its stalls, and fails the stream unless bytes wait unread.
struct FakePath {
    has_unread: bool,
    stalls: Arc<Mutex<Vec<Stall>>>,
}

impl StalledPath for FakePath {
    fn stalled(&self, stall: Stall) -> Result<(), Fault> {
        self.stalls.lock().unwrap().push(stall);
        if self.has_unread {
            Ok(())
        } else {
            Err(stall.into())
        }
    }
}

struct Watched {
    state: Arc<State>,
    watch: DataWatch,
    stalls: Arc<Mutex<Vec<Stall>>>,
    start: Instant,
}

impl Watched {
    fn new(has_unread: bool) -> Self {
        let state = State::new("hostB".to_owned(), Direction::Both, 2);
        let stalls = Arc::default();
        state.data.set_path(FakePath {
            has_unread,
            stalls: Arc::clone(&stalls),
        });
        Self {
            state,
            watch: DataWatch::new(SILENCE),
            stalls,
            start: Instant::now(),
        }
    }

    fn at(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn note(&mut self, after: Duration) {
        let now = self.at(after);
        self.watch.note(&self.state.data, now);
    }

    /// Checks at this time, and returns the stalls that were found.
    fn check(&mut self, after: Duration) -> Vec<Stall> {
        let now = self.at(after);
        self.watch.check(&self.state, now);
        std::mem::take(&mut *self.stalls.lock().unwrap())
    }
}

fn arrivals(bytes: u64) -> Vec<Stall> {
    vec![Stall::Arrivals {
        bytes,
        silence: LIMIT,
    }]
}

#[test]
fn bytes_that_never_arrive_fail_the_stream() {
    let mut watched = Watched::new(false);
    watched.state.data.set_peer(100, 0);
    watched.note(SILENCE);
    assert_eq!(
        watched.watch.deadline(),
        Some(watched.at(SILENCE + LIMIT)),
        "the clock starts with the ping"
    );
    assert!(watched.check(LIMIT).is_empty());
    assert_eq!(watched.check(SILENCE + LIMIT), arrivals(100));
    assert!(!watched.state.failed());
    let again = SILENCE + LIMIT + SECOND_LOOK;
    assert_eq!(watched.watch.deadline(), Some(watched.at(again)));
    assert_eq!(watched.check(again), arrivals(100));
    let error = watched.state.receive_error().unwrap().to_string();
    assert!(error.contains("the data connection broke"), "{error}");
    assert!(error.contains("none of the 100 bytes"), "{error}");
}

#[test]
fn each_byte_starts_the_clock_again() {
    let mut watched = Watched::new(false);
    watched.state.data.set_peer(100, 0);
    for received in 0..50 {
        watched.state.data.set_received(received);
        let time = u32::try_from(received).unwrap() * SILENCE;
        assert!(watched.check(time).is_empty(), "{received}");
    }
    assert_eq!(watched.check(49 * SILENCE + LIMIT), arrivals(51));
}

#[test]
fn a_byte_that_is_counted_late_is_no_fault() {
    let mut watched = Watched::new(false);
    watched.state.data.set_peer(100, 0);
    watched.note(Duration::ZERO);
    assert_eq!(watched.check(LIMIT), arrivals(100));
    watched.state.data.set_received(1);
    assert!(watched.check(LIMIT + SECOND_LOOK).is_empty());
    // The next stall gets a second look too.
    assert_eq!(watched.check(2 * LIMIT + SECOND_LOOK), arrivals(99));
    assert!(!watched.state.failed());
    assert_eq!(watched.check(2 * LIMIT + 2 * SECOND_LOOK), arrivals(99));
    assert!(watched.state.failed());
}

#[test]
fn an_idle_data_path_is_no_stall() {
    let mut watched = Watched::new(false);
    watched.state.data.set_peer(100, 0);
    watched.note(Duration::ZERO);
    watched.state.data.set_received(100);
    watched.note(Duration::ZERO);
    assert_eq!(watched.watch.deadline(), None);
    assert!(watched.check(100 * LIMIT).is_empty());
    // The clock starts again for later bytes.
    watched.state.data.set_peer(101, 0);
    watched.note(100 * LIMIT);
    assert!(watched.check(100 * LIMIT + SILENCE).is_empty());
    assert_eq!(watched.check(101 * LIMIT), arrivals(1));
}

#[test]
fn unread_bytes_are_no_fault() {
    let mut watched = Watched::new(true);
    watched.state.data.set_peer(100, 0);
    watched.note(Duration::ZERO);
    for round in 1..10 {
        assert_eq!(watched.check(round * LIMIT), arrivals(100));
        assert_eq!(
            watched.watch.deadline(),
            Some(watched.at((round + 1) * LIMIT))
        );
    }
    assert!(!watched.state.failed());
}

#[test]
fn a_stopped_process_reads_before_it_judges() {
    let mut watched = Watched::new(false);
    watched.state.data.set_peer(100, 0);
    watched.note(Duration::ZERO);
    watched.watch.restart();
    assert!(watched.check(10 * LIMIT).is_empty());
    assert_eq!(
        watched.watch.deadline(),
        Some(watched.at(11 * LIMIT)),
        "the clock starts when the process continues"
    );
}

#[test]
fn a_reader_that_has_stopped_misses_nothing() {
    let mut watched = Watched::new(false);
    watched.state.data.set_peer(100, 0);
    watched.note(Duration::ZERO);
    watched.state.stop(0);
    assert!(watched.check(LIMIT).is_empty());
    assert!(!watched.state.failed());
}

#[test]
fn writes_that_never_complete_are_noticed_when_they_have_arrived() {
    let mut watched = Watched::new(true);
    watched.state.data.set_sent(10);
    watched.state.data.set_peer(0, 30);
    watched.note(Duration::ZERO);
    let stall = Stall::Completions {
        bytes: 20,
        silence: LIMIT,
    };
    assert_eq!(watched.check(LIMIT), [stall]);
}

#[test]
fn a_time_limit_of_any_length_does_not_overflow() {
    let mut watched = Watched::new(false);
    watched.watch = DataWatch::new(Duration::MAX);
    watched.state.data.set_peer(100, 0);
    watched.note(Duration::ZERO);
    assert_eq!(watched.watch.deadline(), None);
    assert!(watched.check(LIMIT).is_empty());
}
