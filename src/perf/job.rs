//! An agent of rdperf: reports facts about its host, and carries out tasks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::runtime::Handle;
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
        let cause = Arc::clone(&self.context.cause);
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
        order.stream.ports = ports;
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
                ToPerf::Cancel { id } => drop(running.take_if(|(running, _)| *running == id)),
                ToPerf::Finish => return,
            }
        }
    }

    /// Starts one end of a task.
    fn start(&self, running: &mut RunningTask, order: TaskOrder, target: Option<TaskTarget>) {
        let (id, cancelled) = (order.id, CancellationToken::new());
        *running = Some((id, cancelled.clone().drop_guard()));
        let context = self.context.clone();
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

    fn start_storage(&self, running: &mut RunningTask, id: u32, task: StorageTask) {
        let cancelled = CancellationToken::new();
        *running = Some((id, cancelled.clone().drop_guard()));
        let context = self.context.clone();
        tokio::spawn(async move {
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
        ToPerf::Dial { order, .. } => Some(order.id),
        ToPerf::Storage { id, .. } => Some(*id),
        ToPerf::Listen(_) | ToPerf::Cancel { .. } | ToPerf::Finish => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{perf::messages::TaskKind, ssh::protocol::TransportOrder};

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
        let order = TaskOrder {
            id: 8,
            key: String::new(),
            peer: "fs1".to_owned(),
            transport: TransportOrder::Tcp,
            kind: TaskKind::Reach,
        };
        let dial = ToPerf::Dial {
            order: order.clone(),
            addresses: vec!["10.0.0.1".to_owned()],
            port: 25,
        };
        assert_eq!(beyond_listening(&dial), Some(8));
        assert_eq!(beyond_listening(&ToPerf::Listen(order)), None);
    }
}
