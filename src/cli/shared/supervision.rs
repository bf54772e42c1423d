//! Runs work on other hosts, pipelines among it: starts the supervisor, and prints what it has to say; and the agent
//! that every such program can run as.

use std::{
    env,
    io::{self, IsTerminal},
    os::fd::AsFd,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures::FutureExt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::oneshot,
    task::JoinHandle,
};
use zeroize::Zeroizing;

use super::{
    live::LiveStages,
    message::Console,
    progress::RunProgress,
    report::amount,
    run::{self, Exit},
    signals::{self, Caught},
};
use crate::{
    Direction, GeneratedKey, Key,
    cli::args::{Agent, HostOptions, StreamOptions},
    copy::job::CopyJob,
    fd::{EntryIdentity, bytes_left},
    forward::{self, job::ForwardJob},
    host,
    perf::job::PerfJob,
    ssh::{
        agent::{guard_main, job::Applications, relay::RelayEnd, worker_main},
        explain,
        launch::Room,
        local_edge::{LocalEdge, StandardStream},
        outcome::{PipelineOutcome, RunFault, SIGPIPE_STATUS, Site},
        plan::{Plan, StageHost},
        protocol::{EdgeId, FaultKind},
        session::{AgentRoute, ServerKind, ServerRoute},
        supervisor::{
            Driver, EventQueue, EventSender, LocalEdges, Notice, NoticeSink, Observer, Settings,
            Summary, SupervisedWork, event_queue,
            machine::SupervisorMachine,
            pipeline::{OwnFiles, PipelineOptions, PipelineWork},
        },
    },
    threads,
};

/// The options and the runtime for running work on other hosts.
#[derive(Clone, Copy)]
pub(crate) struct Supervision<'a> {
    pub(crate) hosts: &'a HostOptions,
    pub(crate) stream: &'a StreamOptions,
    pub(crate) console: &'a Console,
    pub(crate) client_key: Option<(&'a Key, ServerKind)>,
    /// The runtime of the supervisor and of the streams' control tasks. The bytes move on other threads.
    pub(crate) control: &'a Handle,
}

/// The controller's own edges of a run, and the queue of their events.
pub(crate) struct OwnEdges {
    pub(crate) edges: LocalEdges,
    pub(crate) events: EventSender,
    pub(crate) queue: EventQueue,
}

impl Supervision<'_> {
    /// Runs the work until it ends, or until `signal` ends it. `keys` has one key for each edge, and `names` the name
    /// of each agent before the lines that it writes to stderr. `observe` receives the work after each event.
    pub(crate) fn run<W>(
        &self,
        work: W,
        names: Vec<String>,
        keys: &[GeneratedKey],
        own: OwnEdges,
        observe: Observer<W>,
        signal: impl Future<Output = Option<Caught>> + Send + 'static,
    ) -> anyhow::Result<Summary<W::Outcome>>
    where
        W: SupervisedWork<Outcome: Send> + Send + 'static,
    {
        let running = self.start(work, names, keys, own, observe, signal)?;
        // The thread of the control runtime polls the supervisor; this thread only waits.
        futures::executor::block_on(running).context("the supervisor failed")
    }

    /// Starts the work, as [`run`](Self::run) does, and returns its task.
    pub(crate) fn start<W>(
        &self,
        work: W,
        names: Vec<String>,
        keys: &[GeneratedKey],
        own: OwnEdges,
        observe: Observer<W>,
        signal: impl Future<Output = Option<Caught>> + Send + 'static,
    ) -> anyhow::Result<JoinHandle<Summary<W::Outcome>>>
    where
        W: SupervisedWork<Outcome: Send> + Send + 'static,
    {
        let driver = self.driver(work, names, keys, own, observe)?;
        let (sender, caught) = oneshot::channel();
        // The supervisor runs on the control runtime, where no read or write of a file blocks it.
        Ok(self.control.spawn(async move {
            let watching = threads::spawn(async move {
                if let Some(caught) = signal.await {
                    let _ = sender.send((caught.number, caught.name));
                }
            });
            let summary = driver.run(caught).await;
            watching.abort();
            summary
        }))
    }

    fn driver<W: SupervisedWork>(
        &self,
        work: W,
        names: Vec<String>,
        keys: &[GeneratedKey],
        own: OwnEdges,
        observe: Observer<W>,
    ) -> anyhow::Result<Driver<W>> {
        let own_program =
            env::current_exe().context("cannot find the path of the running program")?;
        let remote = self.hosts.remote();
        let places = work.places();
        let silence = self.stream.timeout();
        let route = |place: &&StageHost| match remote.launch(place, &own_program) {
            Some(launch) => Ok(AgentRoute::Process(launch)),
            None => self.server_route(place, silence).map(AgentRoute::Server),
        };
        let routes: Vec<_> = places.iter().map(route).collect::<Result<_, _>>()?;
        for (agent, route) in routes.iter().enumerate() {
            let site = work.site(agent);
            self.console.minor(&format!("{site}: {}", route.display()));
        }
        let notify = self.notices(&places, names);
        let settings = Settings {
            stream: self.stream.clone(),
            ports: self.hosts.ports,
            addresses: self.hosts.addresses.clone(),
            here: self.hosts.here(),
            machine: Some(host::machine()),
            via_ssh: self.hosts.via_ssh,
        };
        let text = |key: &GeneratedKey| Zeroizing::new(key.text().to_string());
        let texts = keys.iter().map(text).collect();
        Ok(Driver {
            machine: SupervisorMachine::new(work, settings, texts),
            routes,
            own_launch: remote.launch(&StageHost::Here, &own_program),
            silence,
            local_edges: own.edges,
            events: own.events,
            queue: own.queue,
            notify,
            room: self.room(),
            observe,
        })
    }

    fn server_route(&self, place: &StageHost, timeout: Duration) -> anyhow::Result<ServerRoute> {
        match (place, self.client_key) {
            (StageHost::Server { host, port }, Some((key, kind))) => Ok(ServerRoute {
                host: host.clone(),
                port: *port,
                key: key.clone(),
                timeout,
                kind,
            }),
            _ => anyhow::bail!("no key was given for the server {place}"),
        }
    }

    /// Returns the function that prints the supervisor's notices.
    fn notices(&self, places: &[&StageHost], names: Vec<String>) -> NoticeSink {
        let console = self.console.clone();
        let host = |place: &&StageHost| host_of(place, &console);
        let hosts: Vec<_> = places.iter().map(host).collect();
        Arc::new(move |notice| match notice {
            Notice::StderrLine(agent, text) => console.program_line(&names[agent], &text),
            Notice::Unreadable(agent, text) => {
                console.notice(|console| console.error_on(&hosts[agent], &text));
            }
            Notice::Warning(text) => console.notice(|console| console.warn(&text)),
            Notice::Note(text) => console.notice(|console| console.note(&text)),
            Notice::Detail(text) => console.notice(|console| console.detail(&text)),
            Notice::Minor(text) => console.notice(|console| console.minor(&text)),
        })
    }

    /// Returns the function by which the stderr of the agents waits for the reader of the messages.
    fn room(&self) -> Room {
        let console = self.console.clone();
        Arc::new(move || {
            let console = console.clone();
            async move { console.room().await }.boxed()
        })
    }
}

/// Returns the name of a place in messages: the host as it was typed, or the name of this host.
pub(crate) fn host_of(place: &StageHost, console: &Console) -> String {
    place.host().unwrap_or(console.host()).to_owned()
}

/// Makes a key for each of so many edges.
pub(crate) fn keys(count: usize) -> anyhow::Result<Vec<GeneratedKey>> {
    let keys: Result<_, _> = (0..count).map(|_| Key::generate()).collect();
    Ok(keys?)
}

/// The applications of the agents, beside the stages.
struct ProgramApplications;

impl Applications for ProgramApplications {
    type Copy = CopyJob;
    type Measure = PerfJob;
    type Forward = ForwardJob;

    async fn relay<R, W>(end: RelayEnd, input: R, output: W) -> io::Result<()>
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        forward::relay::run(end, input, output).await
    }
}

/// Runs a process of an agent to its end, and returns the exit code. The agent of every program carries out the orders
/// of every program.
pub(crate) fn main(agent: Agent) -> ExitCode {
    match agent {
        Agent::Guard => guard_main(),
        Agent::Worker => worker_main::<ProgramApplications>(),
        Agent::Version => ExitCode::SUCCESS,
    }
}

/// A plan, with the options and the runtime for running it.
pub(crate) struct Pipeline<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) supervision: Supervision<'a>,
    pub(crate) options: PipelineOptions,
    /// Whether the progress disappears before the first byte of the output: both go to a terminal.
    pub(crate) hides_for_output: bool,
}

impl Pipeline<'_> {
    /// Runs the pipeline until it ends, or until `signal` ends it. `observe` receives its state after each event.
    pub(crate) fn run(
        &self,
        observe: impl Fn(&PipelineWork) + Send + 'static,
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
        let own_files = OwnFiles {
            input: EntryIdentity::of_open_file(io::stdin()),
            output: EntryIdentity::of_open_file(io::stdout()),
        };
        let work = PipelineWork::new(plan.clone(), self.options, own_files);
        let stages = 0..plan.stages.len();
        let names = stages.map(|stage| plan.name(stage)).collect();
        let observe = Box::new(move |work: &mut PipelineWork| observe(work));
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
        let mut work = StandardStream::default();
        work.flow = self.options.flow;
        if self.hides_for_output {
            let console = self.supervision.console.clone();
            work.before_output = Some(Box::new(move || console.clear_bar()));
        }
        let (local, commands) = LocalEdge::new(work, key, peer, config, own.events.local_edge(id));
        let runtime = run::runtime()?;
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(local.serve()))
            .context("cannot start a thread")?;
        own.edges.insert(id, commands);
        Ok(())
    }
}

/// How the progress of a pipeline is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PipelineView {
    /// One line, about the bytes of the busiest stage; none if the data comes from or goes to a terminal.
    Bytes {
        /// Whether it does.
        on_terminal: bool,
    },
    /// A line for each stage, until output appears on the same terminal.
    Stages,
}

/// Runs one pipeline, whose progress a terminal shows, until it ends or a signal ends it. Returns the final state, and
/// the bytes that the busiest stage has moved.
pub(crate) fn run_alone(
    plan: &Plan,
    (hosts, stream): (&HostOptions, &StreamOptions),
    options: PipelineOptions,
    view: PipelineView,
    console: &Console,
) -> anyhow::Result<(Summary, u64)> {
    let control = run::control_runtime()?;
    let signal = signals::watch(&control, console).context("cannot catch signals")?;
    let input_bytes = plan.has_input.then(|| bytes_left(io::stdin().as_fd()));
    let stages = LiveStages::new(plan, input_bytes.flatten(), options.flow.bwlimit);
    let stages = Arc::new(Mutex::new(stages));
    let shown = Arc::clone(&stages);
    let progress = match view {
        PipelineView::Bytes { on_terminal } => {
            RunProgress::start(console, on_terminal, move || locked(&shown).bytes())
        }
        PipelineView::Stages => RunProgress::show(console, false, move |columns| {
            locked(&shown).lines(Instant::now(), columns)
        }),
    };
    let pipeline = Pipeline {
        plan,
        supervision: Supervision {
            hosts,
            stream,
            console,
            client_key: None,
            control: &control,
        },
        options: PipelineOptions {
            is_watched: progress.is_some(),
            ..options
        },
        hides_for_output: progress.is_some() && io::stdout().is_terminal(),
    };
    let seen = Arc::clone(&stages);
    let observe = move |work: &PipelineWork| locked(&seen).update(Instant::now(), work.stages());
    let summary = pipeline.run(observe, signal.map(Result::ok))?;
    drop(progress);
    let (bytes, _) = locked(&stages).bytes();
    Ok((summary, bytes))
}

fn locked(stages: &Mutex<LiveStages>) -> MutexGuard<'_, LiveStages> {
    stages.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints what failed in a pipeline of files that has moved so many bytes, and returns true if nothing did. Files that
/// could not be opened have been named before.
pub(crate) fn tell(plan: &Plan, outcome: &PipelineOutcome, bytes: u64, console: &Console) -> bool {
    let stage = &plan.stages[0];
    let kept = outcome.stages.first();
    let kept = kept.and_then(|end| end.kept_file(&stage.work));
    let kept = kept.map_or(String::new(), |kept| format!("; {kept}"));
    if let Some(number) = outcome.signal {
        let (signal, bytes) = (explain::signal(number), amount(bytes));
        console.error(&format!("interrupted by {signal} after {bytes}{kept}"));
        return false;
    }
    let mut causes = outcome.ranked().into_iter();
    let Some(first) = causes.next() else {
        return true;
    };
    let text = format!("{}{kept}", first.fault.text);
    match (stage.place.host(), is_of_file(first)) {
        (Some(host), true) => console.error_on(host, &text),
        _ => console.error(&text),
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
