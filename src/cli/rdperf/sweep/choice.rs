//! The choice of values that a sweep measures.

use crate::perf::report::{
    operations::{FigureName, InlineName, VerbName},
    wait_name::WaitName,
};

/// The number of operations that are posted and not complete, as in `ib_write_bw`.
const DEFAULT_DEPTH: u32 = 128;

/// The number of operations above [`LARGE`] that are posted and not complete: 128 would take seconds to complete at the end of a
/// run.
const DEPTH_OF_LARGE: u32 = 16;

/// The size in bytes from which fewer operations are posted at once.
const LARGE: u32 = 1 << 20;

/// Of so many operations one makes a completion: half of the default depth, so that there is always one under way.
const DEFAULT_SIGNAL: u32 = 64;

/// What `--sweep` asks for: every combination of these values that can be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(super) verbs: Vec<VerbName>,
    /// The sizes of operations in bytes.
    pub(super) sizes: Vec<u32>,
    pub(super) inlines: Vec<InlineName>,
    pub(super) waits: Vec<WaitName>,
    /// Of how many operations one makes a completion; none for what suits the depth.
    pub(super) signals: Option<Vec<u32>>,
    /// How many operations are posted at once; none for what suits the sizes. A ping-pong has one.
    pub(super) depths: Option<Vec<u32>>,
    pub(super) figures: Vec<FigureName>,
}

/// What is measured if only one setting is given: SENDs of the size of a cache line, not inline, with polling.
impl Default for Sweep {
    fn default() -> Self {
        Self {
            verbs: vec![VerbName::Send],
            sizes: vec![64],
            inlines: vec![InlineName::Never],
            waits: vec![WaitName::Busy],
            signals: None,
            depths: None,
            figures: vec![FigureName::Time, FigureName::Rate],
        }
    }
}

impl Sweep {
    /// Returns the depths of a measurement of bytes per second.
    pub(super) fn depths(&self) -> Vec<u32> {
        let default = if self.sizes.iter().any(|size| *size > LARGE) {
            DEPTH_OF_LARGE
        } else {
            DEFAULT_DEPTH
        };
        self.depths.clone().unwrap_or_else(|| vec![default])
    }

    /// Returns of how many operations one makes a completion. All curves have the same value, unless the user gave several.
    pub(super) fn signals(&self, figure: FigureName) -> Vec<u32> {
        let least = self.depths().into_iter().min().unwrap_or(1);
        let default = match figure {
            FigureName::Time => 1,
            FigureName::Rate => (least / 2).clamp(1, DEFAULT_SIGNAL),
        };
        self.signals.clone().unwrap_or_else(|| vec![default])
    }

    /// Measures only times, or only rates, or both.
    pub(in crate::cli::rdperf) fn measure_only(&mut self, times: bool, rates: bool) {
        let wanted = [(FigureName::Time, times), (FigureName::Rate, rates)];
        let wanted = wanted.into_iter().filter(|(_, is_wanted)| *is_wanted);
        self.figures = wanted.map(|(figure, _)| figure).collect();
    }
}
