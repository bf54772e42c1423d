//! Ways to break the protocol on purpose, and named points to stop a process at: how the tests
//! show that they can fail, and die in the right place. Without the feature `fault-injection`
//! all of it is empty and the compiler removes it.

/// Which rules a stream breaks. None, unless a test asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
// Exported with the feature only.
#[cfg_attr(not(feature = "fault-injection"), allow(unreachable_pub))]
#[non_exhaustive]
pub struct Faults {
    /// The receiver never gives a credit back.
    #[cfg(feature = "fault-injection")]
    pub skip_credits: bool,
    /// The receiver grants a slot again while its reader still has it.
    #[cfg(feature = "fault-injection")]
    pub reuse_slots_early: bool,
    /// The receiver delivers chunks whose digest it has not looked at.
    #[cfg(feature = "fault-injection")]
    pub ignore_digest: bool,
}

#[cfg(feature = "fault-injection")]
mod switches {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    impl super::Faults {
        pub(crate) fn skips_credits(self) -> bool {
            self.skip_credits
        }

        pub(crate) fn reuses_slots_early(self) -> bool {
            self.reuse_slots_early
        }

        pub(crate) fn ignores_digest(self) -> bool {
            self.ignore_digest
        }
    }

    /// Stops this process with SIGSTOP when `RDPIPE_STOP_AT` names this point, so that a test can
    /// see it stand there and kill it, or let it go on: it stops only the first time.
    pub(crate) fn point(name: &str) {
        static STOPPED: AtomicBool = AtomicBool::new(false);
        static STOP_AT: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let stop_at = STOP_AT.get_or_init(|| std::env::var("RDPIPE_STOP_AT").ok());
        if stop_at.as_deref() == Some(name) && !STOPPED.swap(true, Ordering::Relaxed) {
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }
}

#[cfg(not(feature = "fault-injection"))]
#[allow(clippy::unused_self)]
mod switches {
    impl super::Faults {
        pub(crate) fn skips_credits(self) -> bool {
            false
        }

        pub(crate) fn reuses_slots_early(self) -> bool {
            false
        }

        pub(crate) fn ignores_digest(self) -> bool {
            false
        }
    }

    pub(crate) fn point(_name: &str) {}
}

pub(crate) use switches::point;
