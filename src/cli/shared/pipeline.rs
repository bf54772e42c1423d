//! Runs a pipeline, for rdpipe, for the files of rdcat, and for the standard streams of rdcp.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::Context;
use futures::FutureExt;

use super::{
    exit::Exit,
    message::Console,
    progress::RunProgress,
    run,
    signals::{self, Caught},
    supervision::{OwnEdges, Supervision, keys},
};
use crate::{
    Direction, GeneratedKey,
    cli::args::{HostOptions, StreamOptions},
    ssh::{
        explain,
        local_edge::{LocalEdge, StandardStream},
        outcome::{PipelineOutcome, RunFault, SIGPIPE_STATUS, Site},
        plan::Plan,
        protocol::{EdgeId, FaultKind},
        supervisor::{
            Summary,
            driver::{LocalEdges, event_queue},
            pipeline::PipelineWork,
        },
    },
};

/// A plan, with the options and the runtime for running it.
pub(crate) struct Pipeline<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) supervision: Supervision<'a>,
    pub(crate) fsync: bool,
    /// The number of bytes that the busiest stage has moved, for a progress bar.
    pub(crate) moved: Arc<AtomicU64>,
}

impl Pipeline<'_> {
    /// Runs the pipeline until it ends, or until `signal` ends it.
    ///
    /// # Errors
    ///
    /// Fails if this machine cannot start the pipeline.
    pub(crate) fn run(
        &self,
        signal: impl Future<Output = Option<Caught>> + Send + 'static,
    ) -> anyhow::Result<Summary> {
        let plan = self.plan;
        let keys = keys(plan.stages.len() + 1)?;
        let (events, queue) = event_queue();
        let mut own = OwnEdges {
            edges: LocalEdges::new(),
            events,
            queue,
        };
        if plan.has_input {
            self.serve(0, Direction::Send, &keys, &mut own)?;
        }
        self.serve(plan.stages.len(), Direction::Receive, &keys, &mut own)?;
        let work = PipelineWork::new(plan.clone(), self.fsync);
        let stages = 0..plan.stages.len();
        let names = stages.map(|stage| plan.name(stage)).collect();
        let moved = Arc::clone(&self.moved);
        let observe =
            Box::new(move |work: &mut PipelineWork| moved.store(work.bytes(), Ordering::Relaxed));
        self.supervision
            .run(work, names, &keys, own, observe, signal)
    }

    /// Starts a thread that serves an edge of this program: its stdin or its stdout. Each edge has a thread, so both
    /// move at once, and a disk or a terminal that stalls delays only its own edge.
    fn serve(
        &self,
        edge: usize,
        direction: Direction,
        keys: &[GeneratedKey],
        own: &mut OwnEdges,
    ) -> anyhow::Result<()> {
        let (from, to) = self.plan.ends(edge);
        let (peer, name) = match direction {
            Direction::Send => (to, "input"),
            _ => (from, "output"),
        };
        let mut config = self.supervision.stream.config(direction);
        config.control_runtime = Some(self.supervision.control.clone());
        let id = EdgeId::of_index(edge);
        let key = keys[edge].key().clone();
        let (local, commands) = LocalEdge::new(
            StandardStream::default(),
            key,
            peer,
            config,
            own.events.local_edge(id),
        );
        let runtime = run::runtime()?;
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(local.serve()))
            .context("cannot start a thread")?;
        own.edges.insert(id, commands);
        Ok(())
    }
}

/// Runs one pipeline with a progress bar, until it ends or a signal ends it. `on_terminal` is true if the data comes
/// from or goes to a terminal, where there is no bar. Returns the final state, and the bytes that the busiest stage has
/// moved.
///
/// # Errors
///
/// Fails if this machine cannot start the pipeline.
pub(crate) fn run_alone(
    plan: &Plan,
    (hosts, stream): (&HostOptions, &StreamOptions),
    fsync: bool,
    on_terminal: bool,
    console: &Console,
) -> anyhow::Result<(Summary, u64)> {
    let control = run::control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let moved = Arc::new(AtomicU64::new(0));
    let pipeline = Pipeline {
        plan,
        supervision: Supervision {
            hosts,
            stream,
            console,
            client_key: None,
            control: &control,
        },
        fsync,
        moved: Arc::clone(&moved),
    };
    let count = Arc::clone(&moved);
    let progress = RunProgress::start(console, None, on_terminal, move || {
        count.load(Ordering::Relaxed)
    });
    let summary = pipeline.run(signal.map(Result::ok))?;
    drop(progress);
    Ok((summary, moved.load(Ordering::Relaxed)))
}

/// Prints what failed in a pipeline of files, and returns true if nothing did. Files that could not be opened have been
/// named before.
pub(crate) fn tell(plan: &Plan, outcome: &PipelineOutcome, console: &Console) -> bool {
    if let Some(number) = outcome.signal {
        console.error(&format!("interrupted by {}", explain::signal(number)));
        return false;
    }
    let mut causes = outcome.ranked().into_iter();
    let Some(first) = causes.next() else {
        return true;
    };
    match (plan.stages[0].place.host(), is_of_file(first)) {
        (Some(host), true) => console.error_on(host, &first.fault.text),
        _ => console.error(&first.fault.text),
    }
    for cause in causes {
        console.detail(&cause.fault.text);
    }
    false
}

/// Returns true if the file itself is the cause, and neither its connection nor this end.
fn is_of_file(cause: &RunFault) -> bool {
    let is_own = cause.fault.kind == FaultKind::Local && !cause.is_infrastructure;
    is_own && matches!(cause.site, Site::Agent(_))
}

/// Returns how a pipeline of files ended.
pub(crate) fn exit_of(outcome: &PipelineOutcome) -> Exit {
    match outcome.exit() {
        _ if outcome.signal.is_some() => Exit::Signal(outcome.signal.unwrap_or(0)),
        0 if !outcome.reader_left => Exit::Ok,
        0 | 1 | SIGPIPE_STATUS if outcome.reader_left => Exit::ReaderClosed,
        1 => Exit::Local,
        _ => Exit::Connection,
    }
}
