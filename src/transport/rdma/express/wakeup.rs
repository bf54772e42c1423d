//! How long this machine takes to wake a thread: what a wait saves if it polls instead.

use std::{
    sync::{
        Once,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// The wake-ups that are measured. The shortest counts, since any of them may have waited for a processor.
const MEASURED: u32 = 5;

/// The time after which a thread that waits certainly sleeps.
const ASLEEP: Duration = Duration::from_micros(300);

static MEASURE: Once = Once::new();
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Returns the time from waking a thread until it runs. It is measured once in a process, in the background; until it is known,
/// this returns zero.
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
