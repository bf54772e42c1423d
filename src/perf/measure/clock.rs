//! The time of a measurement: on the wall, and of the processors.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A clock that runs while an end measures.
pub(super) struct MeasureClock {
    started: Instant,
    processors: Duration,
}

/// What a clock has measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredTime {
    /// The time in nanoseconds.
    pub(super) nanos: u64,
    /// The time of all threads of this process on processors, in nanoseconds.
    pub(super) cpu_nanos: u64,
}

impl MeasureClock {
    /// Starts a clock.
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
            processors: process_time(),
        }
    }

    /// Returns the time since the start.
    pub(super) fn time(&self) -> MeasuredTime {
        MeasuredTime {
            nanos: nanos(self.started.elapsed()),
            cpu_nanos: nanos(process_time().saturating_sub(self.processors)),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time that all threads of this process have spent on processors.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // The kernel returns no negative time for this clock.
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_uses_processor_time() {
        let clock = MeasureClock::start();
        while clock.time().cpu_nanos < 1_000_000 {
            std::hint::black_box(0);
        }
        assert!(clock.time().nanos > 0);
    }
}
