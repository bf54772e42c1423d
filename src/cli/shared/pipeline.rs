//! Runs a pipeline, for rdpipe and for the files of rdcat.

use std::{
    env,
    sync::{Arc, atomic::AtomicU64},
    thread,
};

use anyhow::Context;
use futures::FutureExt;
use tokio::{runtime::Handle, sync::oneshot};
use zeroize::Zeroizing;

use super::{message::Console, run, signals::Caught};
use crate::{
    Direction, GeneratedKey, Key,
    cli::args::{HostOptions, StreamOptions},
    ssh::{
        agent,
        local_edge::LocalEdge,
        plan::{Plan, StageHost},
        protocol::EdgeId,
        session::Room,
        supervisor::{
            Notice, Settings, Summary,
            driver::{Driver, EventSender, LocalEdges, NoticeSink, event_queue},
            machine::PipelineMachine,
        },
    },
};

/// A plan, with the options and the runtime for running it.
pub(crate) struct Pipeline<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) hosts: &'a HostOptions,
    pub(crate) stream: &'a StreamOptions,
    pub(crate) fsync: bool,
    pub(crate) console: &'a Console,
    /// The runtime of the supervisor and of the streams' control tasks. The bytes move on other threads.
    pub(crate) control: &'a Handle,
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
        let driver = self.driver()?;
        let (sender, caught) = oneshot::channel();
        let watching = self.control.spawn(async move {
            if let Some(caught) = signal.await {
                let _ = sender.send((caught.number, caught.name));
            }
        });
        // The supervisor runs on the control runtime, where no read or write of a file blocks it.
        let running = self.control.spawn(driver.run(caught));
        // The thread of the control runtime polls the supervisor; this thread only waits.
        let summary = futures::executor::block_on(running).context("the supervisor failed");
        watching.abort();
        summary
    }

    fn driver(&self) -> anyhow::Result<Driver> {
        let plan = self.plan;
        let keys: Result<Vec<GeneratedKey>, _> =
            (0..=plan.stages.len()).map(|_| Key::generate()).collect();
        let keys = keys?;
        let own_program =
            env::current_exe().context("cannot find the path of the running program")?;
        let remote = self.hosts.remote();
        let launch =
            |stage: &crate::ssh::plan::PlannedStage| remote.launch(&stage.place, &own_program);
        let launches: Vec<_> = plan.stages.iter().map(launch).collect();
        for (stage, launch) in launches.iter().enumerate() {
            let site = plan.site(stage);
            self.console
                .detail(&format!("{site}: {}", launch.display()));
        }
        let (events, queue) = event_queue();
        let mut local_edges = LocalEdges::new();
        if plan.has_input {
            self.serve(0, Direction::Send, &keys, &events, &mut local_edges)?;
        }
        let last = plan.stages.len();
        self.serve(last, Direction::Receive, &keys, &events, &mut local_edges)?;
        let settings = Settings {
            stream: self.hosts.stream_order(self.stream),
            fsync: self.fsync,
            addresses: self.hosts.addresses.clone(),
            here: self.hosts.here(),
            machine: Some(agent::machine()),
        };
        let text = |key: &GeneratedKey| Zeroizing::new(key.text().to_string());
        let texts = keys.iter().map(text).collect();
        Ok(Driver {
            machine: PipelineMachine::new(plan.clone(), settings, texts),
            launches,
            silence: self.stream.config(Direction::Both).timeout,
            local_edges,
            events,
            queue,
            notify: self.notices(),
            room: self.room(),
            moved: Arc::clone(&self.moved),
        })
    }

    /// Returns the function that prints the supervisor's notices.
    fn notices(&self) -> NoticeSink {
        let console = self.console.clone();
        let stages = 0..self.plan.stages.len();
        let names: Vec<_> = stages.map(|stage| self.plan.name(stage)).collect();
        let host = |stage: &crate::ssh::plan::PlannedStage| match &stage.place {
            StageHost::Here => console.host().to_owned(),
            StageHost::Host { host, .. } => host.clone(),
        };
        let hosts: Vec<_> = self.plan.stages.iter().map(host).collect();
        Arc::new(move |notice| match notice {
            Notice::Words(stage, text) => console.words(&names[stage], &text),
            Notice::Unreadable(stage, text) => {
                console.notice(|console| console.error_on(&hosts[stage], &text));
            }
            Notice::Warning(text) => console.notice(|console| console.warn(&text)),
            Notice::Note(text) => console.notice(|console| console.note(&text)),
            Notice::Detail(text) => console.notice(|console| console.detail(&text)),
        })
    }

    /// Returns the function by which the stderr of the stages waits for the reader of the messages.
    fn room(&self) -> Room {
        let console = self.console.clone();
        Arc::new(move || {
            let console = console.clone();
            async move { console.room().await }.boxed()
        })
    }

    /// Starts a thread that serves an edge of this program: its stdin or its stdout. Each edge has a thread, so both move
    /// at once, and a disk or a terminal that stalls delays only its own edge.
    fn serve(
        &self,
        edge: usize,
        direction: Direction,
        keys: &[GeneratedKey],
        events: &EventSender,
        local_edges: &mut LocalEdges,
    ) -> anyhow::Result<()> {
        let (from, to) = self.plan.ends(edge);
        let (peer, name) = match direction {
            Direction::Send => (to, "input"),
            _ => (from, "output"),
        };
        let mut config = self.stream.config(direction);
        config.control_runtime = Some(self.control.clone());
        let id = EdgeId::of_index(edge);
        let key = keys[edge].key().clone();
        let (local, commands) = LocalEdge::new(key, peer, config, events.local_edge(id));
        let runtime = run::runtime()?;
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(local.serve()))
            .context("cannot start a thread")?;
        local_edges.insert(id, commands);
        Ok(())
    }
}
