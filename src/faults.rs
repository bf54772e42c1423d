//! Ways for tests to break the protocol on purpose, named points at which tests stop a process, and a time limit that
//! tests make longer. Without the feature `fault-injection` all of it is empty, and the compiler removes it.

/// The rules of the protocol that one end of a stream breaks on purpose. The default breaks none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each fault is on or off")]
// This type is exported with the feature only.
#[cfg_attr(not(feature = "fault-injection"), allow(unreachable_pub))]
#[non_exhaustive]
pub struct Faults {
    /// The receiver never grants a slot again.
    #[cfg(feature = "fault-injection")]
    pub skip_credits: bool,
    /// The receiver grants a slot again while its reader still uses the slot.
    #[cfg(feature = "fault-injection")]
    pub reuse_slots_early: bool,
    /// The receiver delivers chunks without verifying their digest.
    #[cfg(feature = "fault-injection")]
    pub ignore_digest: bool,
    /// Over RDMA: this end takes no completion of its device, neither of a frame that arrives, until a renewal of the
    /// link looks into the memory, nor of a write.
    #[cfg(feature = "fault-injection")]
    pub lose_completions: bool,
    /// Over RDMA: each express path of this end fails when it is to send this frame, counted from 1; 0 is never.
    #[cfg(feature = "fault-injection")]
    pub lose_express_at: u64,
    /// Over RDMA: each link of this end fails with this write, counted from 1; 0 is never.
    #[cfg(feature = "fault-injection")]
    pub lose_link_at: u64,
    /// Over RDMA: pools that are registered while the link is in use cannot be registered.
    #[cfg(feature = "fault-injection")]
    pub lose_pools: bool,
}

#[cfg(feature = "fault-injection")]
mod switches {
    use std::{
        env,
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

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

        pub(crate) fn loses_completions(self) -> bool {
            self.lose_completions
        }

        #[cfg(feature = "rdma")]
        pub(crate) fn find_completions(&mut self) {
            self.lose_completions = false;
        }

        #[cfg(feature = "rdma")]
        pub(crate) fn loses_express_at(self, frame: u64) -> bool {
            self.lose_express_at == frame
        }

        #[cfg(feature = "rdma")]
        pub(crate) fn loses_link_at(self, write: u64) -> bool {
            self.lose_link_at == write
        }

        #[cfg(feature = "rdma")]
        pub(crate) fn loses_pools(self) -> bool {
            self.lose_pools
        }
    }

    /// Stops this process with SIGSTOP if the environment variable `RDPIPE_STOP_AT` names this point. A test can detect
    /// that the process is stopped, and then kill or continue it. The process stops only the first time.
    pub(crate) fn point(name: &str) {
        static STOPPED: AtomicBool = AtomicBool::new(false);
        static STOP_AT: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let stop_at = STOP_AT.get_or_init(|| env::var("RDPIPE_STOP_AT").ok());
        if stop_at.as_deref() == Some(name) && !STOPPED.swap(true, Ordering::Relaxed) {
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }

    /// Returns the default time limit of a handshake: `usual`, or the seconds in the environment variable
    /// `RDPIPE_HANDSHAKE_TIMEOUT`. An emulated processor that is shared with other work may need longer than `usual`.
    pub(crate) fn handshake_timeout(usual: Duration) -> Duration {
        let given = env::var("RDPIPE_HANDSHAKE_TIMEOUT").ok();
        let seconds = given.and_then(|text| text.parse().ok());
        seconds.map_or(usual, Duration::from_secs)
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

        pub(crate) fn loses_completions(self) -> bool {
            false
        }

        #[cfg(feature = "rdma")]
        pub(crate) fn find_completions(&mut self) {}

        #[cfg(feature = "rdma")]
        pub(crate) fn loses_express_at(self, _frame: u64) -> bool {
            false
        }

        #[cfg(feature = "rdma")]
        pub(crate) fn loses_link_at(self, _write: u64) -> bool {
            false
        }

        #[cfg(feature = "rdma")]
        pub(crate) fn loses_pools(self) -> bool {
            false
        }
    }

    pub(crate) fn point(_name: &str) {}

    pub(crate) fn handshake_timeout(usual: std::time::Duration) -> std::time::Duration {
        usual
    }
}

pub(crate) use switches::{handshake_timeout, point};

/// Returns the rules that this end breaks.
#[cfg(feature = "fault-injection")]
pub(crate) fn of(config: &crate::StreamConfig) -> Faults {
    config.faults
}

/// Returns the rules that this end breaks: none.
#[cfg(not(feature = "fault-injection"))]
pub(crate) fn of(_config: &crate::StreamConfig) -> Faults {
    Faults::default()
}
