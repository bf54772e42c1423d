//! One host of a run, at both ends of its session: the agent, which reports facts about its host and carries out tasks,
//! and the agent as the supervisor of rdperf runs it.
//!
//! Each host is a run of its own, so a host that fails does not end the others.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    facts,
    measure::{OpenTask, TaskSettings, storage},
    messages::{FromPerf, PerfOrder, StorageTask, TaskFault, TaskOrder, TaskResult, ToPerf},
};
use crate::{
    carry::CarryThread,
    ssh::{
        agent::{
            hello,
            job::{ConnectedEdges, Job, JobContext, Messages, OrderedEdges},
        },
        plan::StageHost,
        protocol::{EdgeOrder, FromAgent, Payload, PayloadError, Work, WorkFault},
        supervisor::{Action, RunOutcome, SupervisedWork, edge_setup::EdgeSetup},
    },
    threads,
};

/// An agent of rdperf.
pub(crate) struct PerfJob {
    context: JobContext,
    order: PerfOrder,
    /// True if this host connects to no address that rdperf gives to it, and reads and writes no files.
    only_listens: bool,
}

impl Job for PerfJob {
    fn prepare(context: &JobContext, order: &Payload, _: &OrderedEdges) -> Result<Self, String> {
        let order = order.decode();
        Ok(Self {
            context: context.clone(),
            order: order.map_err(|error| format!("received an invalid order ({error})"))?,
            only_listens: false,
        })
    }

    async fn run(&mut self, edges: ConnectedEdges, messages: Messages) {
        let cause = Arc::clone(&self.context.first_fault);
        tokio::select! {
            () = self.serve(messages) => {}
            // Dropping the tasks cancels them.
            () = cause.failed() => {}
        }
        edges.close().await;
    }

    fn report(&self) -> Option<Payload> {
        None
    }
}

/// The task that runs, and what cancels it. rdperf lets an agent carry out one task at a time.
type RunningTask = Option<(u32, DropGuard)>;

impl PerfJob {
    /// Returns the job of an agent that another host has connected to without ssh: it listens on its
    /// own ports, dials nothing, and reads and writes no files.
    pub(crate) fn listening_only(self, ports: Option<(u16, u16)>) -> Self {
        let mut order = self.order;
        order.ports = ports;
        Self {
            order,
            only_listens: true,
            ..self
        }
    }

    /// Reports the facts about the host, and carries out tasks until no more can follow.
    async fn serve(&self, mut messages: Messages) {
        let order = self.order.clone();
        let facts = match threads::blocking(move || facts::collect(&order, hello())).await {
            Ok(facts) => facts,
            Err(error) => {
                let text = format!("cannot find out what this host has: {error}");
                return self.context.fail_local(&text);
            }
        };
        send(&self.context, &FromPerf::Host(Box::new(facts)));
        let mut running = RunningTask::None;
        while let Some(message) = messages.recv().await {
            let message = match message.decode::<ToPerf>() {
                Ok(message) => message,
                Err(error) => {
                    let text = format!("received an invalid message ({error})");
                    return self.context.fail_local(&text);
                }
            };
            if let (true, Some(id)) = (self.only_listens, beyond_listening(&message)) {
                let fault = "this host only listens".to_owned();
                done(&self.context, id, Err(fault.into()));
                continue;
            }
            match message {
                ToPerf::Task(order) => self.start(&mut running, order),
                ToPerf::Storage { id, task } => self.start_storage(&mut running, id, task),
                ToPerf::Cancel { id } => drop(running.take_if(|(running, _)| *running == id)),
                ToPerf::Finish => return,
            }
        }
    }

    fn start(&self, running: &mut RunningTask, order: TaskOrder) {
        let (id, cancelled) = (order.id, CancellationToken::new());
        *running = Some((id, cancelled.clone().drop_guard()));
        let context = self.context.clone();
        let settings = TaskSettings {
            stream: self.order.stream.clone(),
            ports: self.order.ports,
            control_runtime: Handle::current(),
        };
        threads::spawn(async move {
            let reporting = context.clone();
            let working = async {
                let task = OpenTask::open(order, &settings, cancelled.clone()).await?;
                if let Some(port) = task.port() {
                    send(&reporting, &FromPerf::Listening { id, port });
                }
                // The measurement has a thread of its own, apart from the messages of the agent.
                let thread = CarryThread::start("task");
                let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
                thread.run(task.carry_out()).await
            };
            let result = tokio::select! {
                result = working => result,
                () = cancelled.cancelled() => Err(cancellation()),
            };
            done(&context, id, result);
        });
    }

    fn start_storage(&self, running: &mut RunningTask, id: u32, task: StorageTask) {
        let cancelled = CancellationToken::new();
        *running = Some((id, cancelled.clone().drop_guard()));
        let context = self.context.clone();
        threads::spawn(async move {
            let stop = Arc::new(AtomicBool::new(false));
            let stopping = Arc::clone(&stop);
            let measuring = threads::blocking(move || storage::measure_storage(&task, &stopping));
            let result = tokio::select! {
                measured = measuring => match measured {
                    Ok(measured) => measured.map_err(TaskFault::from),
                    Err(error) => Err(error.to_string().into()),
                },
                () = cancelled.cancelled() => Err(cancellation()),
            };
            stop.store(true, Ordering::Relaxed);
            done(&context, id, result);
        });
    }
}

/// Returns the number of a task that a host which only listens does not carry out: one that connects to an address, or
/// that reads or writes files.
fn beyond_listening(message: &ToPerf) -> Option<u32> {
    match message {
        ToPerf::Task(order) => order.target.as_ref().map(|_| order.id),
        ToPerf::Storage { id, .. } => Some(*id),
        ToPerf::Cancel { .. } | ToPerf::Finish => None,
    }
}

fn cancellation() -> TaskFault {
    "the measurement was cancelled".to_owned().into()
}

fn done(context: &JobContext, id: u32, result: Result<TaskResult, TaskFault>) {
    send(context, &FromPerf::Done { id, result });
}

fn send(context: &JobContext, message: &FromPerf) {
    match Payload::encode(message) {
        Ok(payload) => context.outbox.send(FromAgent::Application(payload)),
        Err(error) => context.fail_local(&format!("cannot send a result: {error}")),
    }
}

/// The index of the only agent of a run.
pub(crate) const ONLY_AGENT: usize = 0;

/// One host: its place, and what its agent has reported since the last look.
pub(crate) struct HostWork {
    place: StageHost,
    order: PerfOrder,
    messages: Vec<FromPerf>,
}

impl HostWork {
    /// Returns a host before its first message.
    pub(crate) fn new(place: StageHost, order: PerfOrder) -> Self {
        Self {
            place,
            order,
            messages: Vec::new(),
        }
    }

    /// Returns what the agent has reported since the last call.
    pub(crate) fn take_messages(&mut self) -> Vec<FromPerf> {
        std::mem::take(&mut self.messages)
    }
}

impl SupervisedWork for HostWork {
    type Outcome = RunOutcome;

    const NOUN: &'static str = "measurement";

    fn places(&self) -> Vec<&StageHost> {
        vec![&self.place]
    }

    fn edges(&self) -> Vec<Option<EdgeSetup>> {
        Vec::new()
    }

    fn site(&self, _: usize) -> String {
        match self.place.host() {
            None => "this machine".to_owned(),
            Some(host) => host.to_owned(),
        }
    }

    fn program(&self) -> &'static str {
        "rdperf"
    }

    fn order(&self, _: usize, _: &[EdgeOrder]) -> Result<Work, PayloadError> {
        Payload::encode(&self.order).map(Work::Measure)
    }

    fn handle(&mut self, _: usize, message: &Payload) -> Result<Vec<Action>, PayloadError> {
        self.messages.push(message.decode()?);
        Ok(Vec::new())
    }

    fn is_infrastructure(&self, _: usize, _: &WorkFault, _: bool) -> bool {
        // An agent that fails as a whole has measured nothing: tasks report their faults themselves.
        true
    }

    fn outcome(&self, run: RunOutcome) -> RunOutcome {
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        TransportPolicy,
        perf::messages::{TaskKind, TaskTarget},
    };

    #[test]
    fn a_host_that_only_listens_touches_no_file_and_dials_nothing() {
        let path = b"/etc/passwd".to_vec();
        for task in [
            StorageTask::Read {
                path: path.clone(),
                millis: 1,
            },
            StorageTask::Write { path, millis: 1 },
        ] {
            assert_eq!(beyond_listening(&ToPerf::Storage { id: 7, task }), Some(7));
        }
        let order = |target| TaskOrder {
            id: 8,
            key: String::new(),
            peer: "fs1".to_owned(),
            transport: TransportPolicy::Tcp,
            target,
            kind: TaskKind::Reach,
        };
        let target = TaskTarget {
            addresses: vec!["10.0.0.1".to_owned()],
            port: 25,
        };
        let dial = ToPerf::Task(order(Some(target)));
        assert_eq!(beyond_listening(&dial), Some(8));
        let listen = ToPerf::Task(order(None));
        assert_eq!(beyond_listening(&listen), None);
    }
}
