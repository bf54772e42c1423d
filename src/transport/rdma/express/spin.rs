//! Whether a wait for a small frame begins with polling: it depends on how long this machine takes to wake a thread.
//!
//! Polling finds a frame some microseconds after it has arrived; an event, a wake-up and a system call take ten times
//! as long. But polling holds the thread, and is wasted if no frame comes soon. So by default a wait polls only while
//! that finds frames: at least one in eight waits. And it polls no longer than a few wake-ups take, because it saves no
//! more than one at each end.

use std::{
    cell::Cell,
    sync::{
        Once,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// The longest time for which a wait may poll: it holds up the thread.
const LIMIT: Duration = Duration::from_millis(10);

/// How long a wait polls by default, where a wake-up takes little time: a message to another host and back takes some
/// microseconds.
const LONGEST: Duration = Duration::from_micros(50);

/// How many wake-ups a wait may poll by default. One is saved at each end, and on a machine on which they take long, so
/// does all that the peer has to do before it answers.
const WAKEUPS: u32 = 4;

/// The longest time for which a wait polls by default: the wake-ups may have been measured in a bad moment.
const MOST_BY_DEFAULT: Duration = Duration::from_millis(1);

/// The most unsuccessful polls, one after the other.
const MAX_FAILED_POLLS: u32 = 64;

/// The number of unsuccessful polls that one successful poll pays for.
const FAILED_POLLS_PER_HIT: u32 = 8;

/// The number of waits for which polling is tried again after it was given up.
const TRIAL_WAITS: u64 = 64;

/// The number of frames after which polling is tried again: at first, and after trials without success. All are powers
/// of two, and the trials begin at multiples of them, so both ends of a conversation try at the same time: it takes
/// both to make it fast.
const FIRST_PERIOD: u64 = 512;
const LONGEST_PERIOD: u64 = 65_536;

/// Decides for one express path which waits begin with polling.
#[derive(Debug)]
pub(super) struct Spin {
    /// How long a wait polls, if the user has chosen.
    chosen: Option<Duration>,
    /// `None` if every wait polls.
    adaptive: Option<Adaptive>,
    /// The number of frames that had arrived when a wait polled last.
    polled_at: Option<u64>,
}

#[derive(Debug)]
struct Adaptive {
    /// The waits that may still poll without success.
    credit: u32,
    /// The number of frames between the beginnings of two trials.
    period: u64,
    /// The last trial that ended without success, as the number of the frame at its beginning.
    failed_trial: Option<u64>,
}

/// The number of waits in a row, with no wait of another express path on the same thread, after which an express path
/// is alone there.
const ALONE_AFTER: u32 = 8;

thread_local! {
    /// The express path that has waited last on this thread, and for how many frames before that, one after the other.
    static LAST: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

impl Spin {
    /// Polls for the time that the user has chosen, in every wait; if the user has not chosen, as long as it finds
    /// frames.
    pub(super) fn new(chosen: Option<Duration>) -> Self {
        let adaptive = Adaptive {
            credit: MAX_FAILED_POLLS,
            period: FIRST_PERIOD,
            failed_trial: None,
        };
        Self {
            chosen,
            adaptive: chosen.is_none().then_some(adaptive),
            polled_at: None,
        }
    }

    /// Returns how long the wait of express path `id` that begins now polls, if it does. `arrived` frames have arrived
    /// so far.
    ///
    /// A wake-up takes the time `wakeup` on this machine.
    ///
    /// Only one wait polls for a frame, however often the task is polled. A thread on which several express paths wait
    /// does not poll: it would hold up the others.
    pub(super) fn begin_wait(
        &mut self,
        id: u64,
        arrived: u64,
        wakeup: Duration,
    ) -> Option<Duration> {
        let is_first = self.polled_at.replace(arrived) != Some(arrived);
        let (last, waits) = LAST.get();
        let waits = if last == id { waits } else { 0 };
        LAST.set((id, waits.saturating_add(u32::from(is_first))));
        let is_alone = waits >= ALONE_AFTER;
        let may_poll =
            |adaptive: &Adaptive| adaptive.credit > 0 || arrived % adaptive.period < TRIAL_WAITS;
        let polls = self.adaptive.as_ref().is_none_or(may_poll);
        let default = (WAKEUPS * wakeup).clamp(LONGEST, MOST_BY_DEFAULT);
        let longest = self.chosen.unwrap_or(default).min(LIMIT);
        (is_alone && is_first && polls && !longest.is_zero()).then_some(longest)
    }

    /// Notes that express path `id` found a frame without a wait: another express path on this thread is not alone.
    pub(super) fn pass(id: u64) {
        if LAST.get().0 != id {
            LAST.set((id, 0));
        }
    }

    /// Records whether polling has found a frame. `arrived` frames had arrived before.
    pub(super) fn end_wait(&mut self, arrived: u64, has_found: bool) {
        let Some(adaptive) = &mut self.adaptive else {
            return;
        };
        if has_found {
            adaptive.credit = (adaptive.credit + FAILED_POLLS_PER_HIT).min(MAX_FAILED_POLLS);
            adaptive.period = FIRST_PERIOD;
            return;
        }
        adaptive.credit = adaptive.credit.saturating_sub(1);
        let waits = arrived % adaptive.period;
        let trial = arrived - waits;
        let is_over = (TRIAL_WAITS / 2..TRIAL_WAITS).contains(&waits);
        if adaptive.credit == 0 && is_over && adaptive.failed_trial != Some(trial) {
            adaptive.failed_trial = Some(trial);
            adaptive.period = (adaptive.period * 2).min(LONGEST_PERIOD);
        }
    }
}

/// The wake-ups that are measured. The shortest counts, since any of them may have waited for a processor.
const MEASURED: u32 = 5;

/// The time after which a thread that waits certainly sleeps.
const ASLEEP: Duration = Duration::from_micros(300);

static MEASURE: Once = Once::new();
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Returns the time from waking a thread until it runs. It is measured once in a process, in the background; until it
/// is known, this returns zero.
pub(super) fn wakeup_time() -> Duration {
    MEASURE.call_once(|| {
        // Without a thread it stays unknown.
        let _ = thread::Builder::new()
            .name("wake-up".to_owned())
            .spawn(measure);
    });
    Duration::from_nanos(NANOSECONDS.load(Relaxed))
}

fn measure() {
    let (alarm, alarms) = mpsc::channel::<()>();
    let (woken, times) = mpsc::channel();
    let sleeper = thread::Builder::new().name("sleeper".to_owned());
    let sleeping = sleeper.spawn(move || {
        while alarms.recv().is_ok() {
            let _ = woken.send(Instant::now());
        }
    });
    if sleeping.is_err() {
        return;
    }
    let one = |_| {
        thread::sleep(ASLEEP);
        let began = Instant::now();
        alarm.send(()).ok()?;
        Some(times.recv().ok()?.duration_since(began))
    };
    let shortest = (0..MEASURED).filter_map(one).min().unwrap_or_default();
    let nanoseconds = u64::try_from(shortest.as_nanos()).unwrap_or_default();
    NANOSECONDS.store(nanoseconds, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a wake-up on a fast machine.
    const WAKEUP: Duration = Duration::from_micros(5);

    /// Lets `frames` frames arrive, each after a wait. Returns how many waits polled.
    fn waits(spin: &mut Spin, id: u64, from: u64, frames: u64, finds: impl Fn(u64) -> bool) -> u64 {
        let mut polled = 0;
        for arrived in from..from + frames {
            if spin.begin_wait(id, arrived, WAKEUP).is_some() {
                polled += 1;
                spin.end_wait(arrived, finds(arrived));
            }
        }
        polled
    }

    fn spin(chosen: Option<Duration>, id: u64) -> Spin {
        let mut spin = Spin::new(chosen);
        // The first waits on a thread show that the express path is alone.
        for wait in 0..u64::from(ALONE_AFTER) {
            assert_eq!(spin.begin_wait(id, u64::MAX - wait, WAKEUP), None);
        }
        spin
    }

    #[test]
    fn polling_goes_on_while_one_wait_in_eight_finds_a_frame() {
        let mut all = spin(None, 1);
        assert_eq!(waits(&mut all, 1, 0, 10_000, |n| n % 8 == 0), 10_000);
    }

    #[test]
    fn polling_without_success_ends_and_is_tried_again() {
        let mut idle = spin(None, 2);
        assert_eq!(
            waits(&mut idle, 2, 0, 512, |_| false),
            u64::from(MAX_FAILED_POLLS)
        );
        let tried = waits(&mut idle, 2, 512, 1 << 20, |_| false);
        assert!((1_000..3_000).contains(&tried), "{tried}");
        let from = (1 << 20) + 512;
        let after = waits(&mut idle, 2, from, 1 << 17, |_| true);
        assert!(after > 1 << 16, "{after}");
    }

    #[test]
    fn a_frame_is_polled_for_once() {
        let mut once = spin(None, 3);
        assert_eq!(once.begin_wait(3, 7, WAKEUP), Some(LONGEST));
        assert_eq!(once.begin_wait(3, 7, WAKEUP), None);
        assert_eq!(once.begin_wait(3, 8, WAKEUP), Some(LONGEST));
    }

    #[test]
    fn where_wakeups_take_long_a_wait_polls_longer() {
        let mut slow = spin(None, 8);
        let wakeup = Duration::from_micros(150);
        assert_eq!(slow.begin_wait(8, 0, wakeup), Some(4 * wakeup));
        assert_eq!(slow.begin_wait(8, 1, LIMIT), Some(MOST_BY_DEFAULT));
    }

    #[test]
    fn lanes_that_share_a_thread_do_not_poll() {
        let (mut one, mut other) = (spin(None, 4), spin(None, 5));
        for arrived in 0..100 {
            assert_eq!(one.begin_wait(4, arrived, WAKEUP), None);
            Spin::pass(5);
            assert_eq!(one.begin_wait(4, 1000 + arrived, WAKEUP), None);
            assert_eq!(other.begin_wait(5, arrived, WAKEUP), None);
        }
        let alone = (100..120).map(|arrived| one.begin_wait(4, arrived, WAKEUP).is_some());
        let polls: Vec<bool> = alone.collect();
        assert!(!polls[..ALONE_AFTER as usize].contains(&true), "{polls:?}");
        assert!(polls[ALONE_AFTER as usize], "{polls:?}");
    }

    #[test]
    fn the_user_chooses() {
        let mut never = spin(Some(Duration::ZERO), 6);
        assert_eq!(waits(&mut never, 6, 0, 1000, |_| true), 0);
        let long = Duration::from_millis(1);
        let mut always = spin(Some(long), 7);
        assert_eq!(waits(&mut always, 7, 0, 1000, |_| false), 1000);
        assert_eq!(always.begin_wait(7, 1000, WAKEUP), Some(long));
    }

    #[test]
    fn a_wakeup_takes_some_time() {
        let began = Instant::now();
        let mut time = wakeup_time();
        while time.is_zero() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "it is not measured"
            );
            thread::yield_now();
            time = wakeup_time();
        }
        assert!(time < Duration::from_secs(1), "{time:?}");
    }
}
