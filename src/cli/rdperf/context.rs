//! What all parts of a run share.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    cli::{
        args::RdperfArgs,
        shared::{message::Console, progress::StepsProgress},
    },
    perf::report::{measurand::Measurand, sample::Sample},
};

/// What all parts of a run share.
pub(super) struct RunContext<'a> {
    pub(super) args: &'a RdperfArgs,
    pub(super) console: &'a Console,
    pub(super) steps: SharedSteps,
}

impl RunContext<'_> {
    /// Returns true if the report is for people, and not for programs.
    pub(super) fn is_for_people(&self) -> bool {
        !self.args.report.json && !self.args.report.csv
    }

    /// Prints what one run of a measurement has shown, with `-v`.
    pub(super) fn tell_sample(&self, name: &str, what: &Measurand, sample: &Sample) {
        let value = if what.is_rate() {
            format!("{:.3} GB/s", sample.value / 1e9)
        } else {
            format!("{:.2} µs", sample.value)
        };
        let link = sample.link.as_ref().map(|link| format!(" ({link})"));
        let link = link.unwrap_or_default();
        self.console.detail(&format!("{name}: {value}{link}"));
    }
}

/// How far the measurements are, for the progress line.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedSteps(Arc<Mutex<StepsProgress>>);

impl SharedSteps {
    /// Returns the steps that are done, those that there are, and the one that is being done.
    pub(super) fn look(&self) -> StepsProgress {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Shows a step whose place among the others is not known.
    pub(super) fn begin(&self, current: &str) {
        self.set(0, 0, current.to_owned());
    }

    pub(super) fn set(&self, done: u64, total: u64, current: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = StepsProgress {
            done,
            total,
            current,
        };
    }
}
