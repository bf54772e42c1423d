//! An agent of rdperf: reports facts about its host, and carries out tasks.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{runtime::Handle, task::spawn_blocking};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    facts,
    measure::{
        storage,
        task::{OpenTask, TaskSettings, TaskTarget},
    },
    messages::{FromPerf, PerfOrder, StorageTask, TaskFault, TaskOrder, TaskResult, ToPerf},
};
use crate::{
    carry::thread::CarryThread,
    ssh::{
        agent::{
            hello,
            job::{ConnectedEdges, Job, JobContext, Messages, OrderedEdges},
        },
        protocol::{FromAgent, Payload},
    },
};

/// An agent of rdperf.
pub(crate) struct PerfJob {
    context: JobContext,
    order: PerfOrder,
    /// True if this end connects to no address that rdperf gives to it.
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
        let cause = Arc::clone(&self.context.cause);
        tokio::select! {
            () = self.attend(messages) => {}
            // Dropping the tasks cancels them.
            () = cause.failed() => {}
        }
        edges.close().await;
    }

    fn report(&self) -> Option<Payload> {
        None
    }
}

/// The tasks that have not ended, each with what cancels it.
type RunningTasks = HashMap<u32, DropGuard>;

impl PerfJob {
    /// Returns the job of an agent that another host has connected to without ssh: it listens on its own ports, and dials nothing.
    pub(crate) fn listening_only(self, ports: Option<(u16, u16)>) -> Self {
        let mut order = self.order;
        order.stream.ports = ports;
        Self {
            order,
            only_listens: true,
            ..self
        }
    }

    /// Reports the facts about the host, and carries out tasks until no more can follow.
    async fn attend(&self, mut messages: Messages) {
        let order = self.order.clone();
        let Ok(facts) = spawn_blocking(move || facts::collect(&order, hello())).await else {
            return self
                .context
                .fail_local("cannot find out what this host has");
        };
        send(&self.context, &FromPerf::Host(Box::new(facts)));
        let mut running = RunningTasks::new();
        while let Some(message) = messages.recv().await {
            let message = match message.decode::<ToPerf>() {
                Ok(message) => message,
                Err(error) => {
                    let text = format!("received an invalid message ({error})");
                    return self.context.fail_local(&text);
                }
            };
            match message {
                ToPerf::Listen(order) => self.start(&mut running, order, None),
                ToPerf::Dial {
                    order,
                    addresses,
                    port,
                } => {
                    let target = TaskTarget { addresses, port };
                    self.start(&mut running, order, Some(target));
                }
                ToPerf::Storage { id, task } => self.start_storage(&mut running, id, task),
                ToPerf::Cancel { id } => drop(running.remove(&id)),
                ToPerf::Finish => return,
            }
        }
    }

    /// Starts one end of a task.
    fn start(&self, running: &mut RunningTasks, order: TaskOrder, target: Option<TaskTarget>) {
        let (id, cancelled) = (order.id, CancellationToken::new());
        running.insert(id, cancelled.clone().drop_guard());
        let context = self.context.clone();
        if target.is_some() && self.only_listens {
            let fault = "this end listens only".to_owned().into();
            return done(&context, id, Err(fault));
        }
        let settings = TaskSettings {
            stream: self.order.stream.clone(),
            control_runtime: Handle::current(),
        };
        tokio::spawn(async move {
            let reporting = context.clone();
            let working = async {
                let task = OpenTask::open(order, target, &settings, cancelled.clone()).await?;
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

    fn start_storage(&self, running: &mut RunningTasks, id: u32, task: StorageTask) {
        let cancelled = CancellationToken::new();
        running.insert(id, cancelled.clone().drop_guard());
        let context = self.context.clone();
        tokio::spawn(async move {
            let stop = Arc::new(AtomicBool::new(false));
            let stopping = Arc::clone(&stop);
            let measuring = spawn_blocking(move || storage::measure_storage(&task, &stopping));
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
