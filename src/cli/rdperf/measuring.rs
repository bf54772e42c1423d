//! The measurements of a run: TCP beside RDMA, in alternating runs.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    coordinator::{Coordinator, PairTask, TaskTrouble},
    measurands::{Depth, measurands},
    run::RunContext,
};
use crate::{
    cli::shared::progress::StepsProgress,
    perf::{
        messages::{PortPairProof, StorageTask},
        report::{
            measurand::{Measurand, Medium},
            sample::Sample,
            series::Series,
        },
    },
    ssh::protocol::TransportOrder,
};

/// Two hosts that were checked, and what works between them.
#[derive(Debug, Clone)]
pub(super) struct MeasuredPair {
    /// The index of the host that dials.
    pub(super) dialer: usize,
    /// The index of the host that listens.
    pub(super) listener: usize,
    /// The transports that work between the two.
    pub(super) media: Vec<Medium>,
    /// The RDMA ports that reach each other, the best first.
    pub(super) ports: Vec<PortPairProof>,
}

/// A file or a directory that is measured.
#[derive(Debug, Clone)]
pub(super) struct MeasuredPath {
    /// The index of the host.
    pub(super) host: usize,
    pub(super) path: Vec<u8>,
    /// True if it is written.
    pub(super) is_written: bool,
}

/// One measurement of a run, and its runs so far.
struct PlannedSeries {
    series: Series,
    /// The place in the report.
    place: usize,
    step: Step,
    has_failed: bool,
}

/// What one run of a measurement consists of.
enum Step {
    Pair {
        dialer: usize,
        listener: usize,
        ports: Option<PortPairProof>,
    },
    Storage(usize, Vec<u8>),
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

    fn set(&self, done: u64, total: u64, current: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = StepsProgress {
            done,
            total,
            current,
        };
    }
}

/// Measures all pairs and paths. Returns the series, and adds the errors to the context.
pub(super) async fn measure(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    pairs: &[MeasuredPair],
    paths: &[MeasuredPath],
    errors: &mut Vec<(bool, String)>,
) -> Vec<Series> {
    let depth = if pairs.len() > 1 {
        Depth::Matrix
    } else {
        Depth::Full
    };
    let mut planned = Vec::new();
    for path in paths {
        planned.push(of_path(coordinator, path, planned.len()));
    }
    for pair in pairs {
        let whats = measurands(&context.args.measure, depth, &pair.media);
        let first = planned.len();
        let of_pair = whats.into_iter().enumerate();
        let of_pair =
            of_pair.map(|(index, what)| of_pair_at(coordinator, pair, first + index, what));
        let mut of_pair: Vec<_> = of_pair.collect();
        // TCP and RDMA take turns, so a machine that slows down slows both down.
        of_pair.sort_by_cached_key(|planned| turn(&planned.series.what));
        planned.extend(of_pair);
    }
    let runs = context.args.measure.runs();
    let total = planned.len() as u64 * u64::from(runs);
    for run in 0..runs {
        for index in 0..planned.len() {
            let step = &mut planned[index];
            let name = crate::perf::report::diff::name(&step.series);
            let done = u64::from(run) * (total / u64::from(runs)) + index as u64;
            context
                .steps
                .set(done, total, format!("run {} of {runs}: {name}", run + 1));
            if step.has_failed {
                continue;
            }
            match one_run(coordinator, context, step).await {
                Ok(sample) => {
                    context.tell_sample(&name, &step.series.what, &sample);
                    step.series.runs.push(sample);
                }
                Err((is_local, text)) => {
                    step.has_failed = true;
                    let text = format!("{name}: {text}");
                    context.console.error(&text);
                    errors.push((is_local, text));
                }
            }
        }
        if coordinator.is_interrupted() {
            break;
        }
    }
    planned.retain(|planned| !planned.series.runs.is_empty());
    planned.sort_by_key(|planned| planned.place);
    planned.into_iter().map(|planned| planned.series).collect()
}

/// Returns the key that brings measurements of TCP and RDMA together that are alike.
fn turn(what: &Measurand) -> (u8, String, Option<Medium>) {
    let class = match what {
        Measurand::Bandwidth { .. } => 0,
        Measurand::Latency { .. } => 1,
        _ => 2,
    };
    (class, what.to_string(), what.medium())
}

fn of_pair_at(
    coordinator: &Coordinator,
    pair: &MeasuredPair,
    place: usize,
    what: Measurand,
) -> PlannedSeries {
    PlannedSeries {
        series: Series {
            from: coordinator.hosts.name(pair.dialer).to_owned(),
            to: Some(coordinator.hosts.name(pair.listener).to_owned()),
            what,
            runs: Vec::new(),
        },
        place,
        step: Step::Pair {
            dialer: pair.dialer,
            listener: pair.listener,
            ports: pair.ports.first().cloned(),
        },
        has_failed: false,
    }
}

fn of_path(coordinator: &Coordinator, path: &MeasuredPath, place: usize) -> PlannedSeries {
    let text = String::from_utf8_lossy(&path.path).into_owned();
    PlannedSeries {
        series: Series {
            from: coordinator.hosts.name(path.host).to_owned(),
            to: None,
            what: if path.is_written {
                Measurand::Write { path: text }
            } else {
                Measurand::Read { path: text }
            },
            runs: Vec::new(),
        },
        place,
        step: Step::Storage(path.host, path.path.clone()),
        has_failed: false,
    }
}

/// Measures once. Fails with a sentence, and true if a file is the cause and no connection.
async fn one_run(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    planned: &PlannedSeries,
) -> Result<Sample, (bool, String)> {
    let millis = context.args.measure.millis();
    let what = &planned.series.what;
    match &planned.step {
        Step::Storage(host, path) => {
            let path = path.clone();
            let task = match what {
                Measurand::Write { .. } => StorageTask::Write { path, millis },
                _ => StorageTask::Read { path, millis },
            };
            let result = coordinator.storage(*host, task).await;
            let result = result.map_err(|trouble| (true, coordinator.words(&trouble)))?;
            Sample::of_storage(&result).map_err(|text| (false, text))
        }
        Step::Pair {
            dialer,
            listener,
            ports,
        } => {
            let kind = what.task(millis, ports.as_ref());
            let kind = kind.ok_or_else(|| (false, "there is no such measurement".to_owned()))?;
            let task = PairTask {
                dialer: *dialer,
                listener: *listener,
                transport: match what.medium() {
                    Some(Medium::Rdma) => TransportOrder::Rdma,
                    _ => TransportOrder::Tcp,
                },
                kind,
            };
            let result = coordinator.run(&task).await;
            let result =
                result.map_err(|trouble: TaskTrouble| (false, coordinator.words(&trouble)))?;
            Sample::of(&result.dialer, &result.listener).map_err(|text| (false, text))
        }
    }
}
