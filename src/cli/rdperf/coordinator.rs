//! Lets two hosts carry out a task together, one task at a time.

use super::hosts::PerfHosts;
use crate::{
    Key,
    perf::messages::{FromPerf, StorageTask, TaskFault, TaskKind, TaskOrder, TaskResult, ToPerf},
    ssh::protocol::TransportOrder,
};

/// Lets hosts carry out tasks, one at a time.
pub(super) struct Coordinator {
    pub(super) hosts: PerfHosts,
    next_id: u32,
}

/// What two hosts measure together.
#[derive(Debug, Clone)]
pub(super) struct PairTask {
    /// The index of the host that dials.
    pub(super) dialer: usize,
    /// The index of the host that listens.
    pub(super) listener: usize,
    pub(super) transport: TransportOrder,
    pub(super) kind: TaskKind,
}

/// What two hosts have measured.
#[derive(Debug, Clone)]
pub(super) struct PairResult {
    pub(super) dialer: TaskResult,
    pub(super) listener: TaskResult,
}

/// The reason why a task has no result.
#[derive(Debug, Clone)]
pub(super) enum TaskFailure {
    /// A host is lost. Its error is printed with the host.
    Lost(usize),
    /// The task failed at this host.
    Failed(usize, TaskFault),
}

/// The results of the two ends of a task, as far as they have arrived.
#[derive(Default)]
struct PairProgress {
    dialer: Option<TaskResult>,
    listener: Option<TaskResult>,
    fault: Option<(usize, TaskFault)>,
    ended: [bool; 2],
}

impl Coordinator {
    /// Returns a coordinator of these hosts.
    pub(super) fn new(hosts: PerfHosts) -> Self {
        Self { hosts, next_id: 0 }
    }

    /// Lets two hosts carry out a task. Returns when both have ended it.
    pub(super) async fn run(&mut self, task: &PairTask) -> Result<PairResult, TaskFailure> {
        let id = self.new_id();
        let key = match Key::generate() {
            Ok(key) => key,
            Err(error) => return Err(failed(task.dialer, error.to_string())),
        };
        let order = |peer: usize| TaskOrder {
            id,
            key: key.text().to_string(),
            peer: self.hosts.name(peer).to_owned(),
            transport: task.transport,
            kind: task.kind.clone(),
        };
        let dial_order = order(task.listener);
        self.tell(task.listener, &ToPerf::Listen(order(task.dialer)))?;
        let mut dial_order = Some(dial_order);
        let mut progress = PairProgress::default();
        // An end that was not told to dial has ended.
        progress.ended[0] = true;
        while progress.ended != [true; 2] {
            let news = self.hosts.next().await;
            for host in [task.dialer, task.listener] {
                if self.hosts.lost(host).is_some() {
                    let other = if host == task.dialer {
                        task.listener
                    } else {
                        task.dialer
                    };
                    let _ = self.hosts.send(other, &ToPerf::Cancel { id });
                    return Err(TaskFailure::Lost(host));
                }
            }
            match news {
                Some((host, FromPerf::Listening { id: of, port }))
                    if of == id && host == task.listener =>
                {
                    let Some(order) = dial_order.take() else {
                        continue;
                    };
                    progress.ended[0] = false;
                    let dial = ToPerf::Dial {
                        order,
                        addresses: self.hosts.addresses(task.dialer, task.listener),
                        port,
                    };
                    self.tell(task.dialer, &dial)?;
                }
                Some((host, FromPerf::Done { id: of, result })) if of == id => {
                    let other = progress.ended(task, host, result);
                    if let Some(other) = other {
                        self.tell(other, &ToPerf::Cancel { id })?;
                    }
                }
                // A late message of a task that has ended.
                _ => {}
            }
        }
        progress.result(task)
    }

    /// Lets a host measure a file or a directory.
    pub(super) async fn storage(
        &mut self,
        host: usize,
        task: StorageTask,
    ) -> Result<TaskResult, TaskFailure> {
        let id = self.new_id();
        self.tell(host, &ToPerf::Storage { id, task })?;
        loop {
            let news = self.hosts.next().await;
            if self.hosts.lost(host).is_some() {
                return Err(TaskFailure::Lost(host));
            }
            if let Some((from, FromPerf::Done { id: of, result })) = news
                && (from, of) == (host, id)
            {
                return result.map_err(|fault| TaskFailure::Failed(host, fault));
            }
        }
    }

    /// Returns true if a signal has ended the run.
    pub(super) fn is_interrupted(&self) -> bool {
        self.hosts.signal().is_some()
    }

    /// Returns the text of a failure: which host failed, and why.
    pub(super) fn text(&self, failure: &TaskFailure) -> String {
        match failure {
            TaskFailure::Lost(host) => {
                let why = self.hosts.lost(*host).unwrap_or("it is lost");
                format!("{}: {why}", self.hosts.name(*host))
            }
            TaskFailure::Failed(host, fault) => {
                format!("{}: {}", self.hosts.name(*host), fault.text)
            }
        }
    }

    fn tell(&self, host: usize, message: &ToPerf) -> Result<(), TaskFailure> {
        if self.hosts.lost(host).is_some() {
            return Err(TaskFailure::Lost(host));
        }
        let sent = self.hosts.send(host, message);
        sent.map_err(|why| failed(host, why))
    }

    fn new_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }
}

fn failed(host: usize, why: String) -> TaskFailure {
    TaskFailure::Failed(host, why.into())
}

impl PairProgress {
    /// Records that one end of the task has ended. Returns the host of the other end if that must end too.
    fn ended(
        &mut self,
        task: &PairTask,
        host: usize,
        result: Result<TaskResult, TaskFault>,
    ) -> Option<usize> {
        let is_dialer = host == task.dialer;
        if is_dialer == (host == task.listener) {
            return None;
        }
        self.ended[usize::from(!is_dialer)] = true;
        match result {
            Ok(result) if is_dialer => self.dialer = Some(result),
            Ok(result) => self.listener = Some(result),
            Err(fault) => {
                // The first fault is the cause of the other one.
                if self.fault.is_none() {
                    self.fault = Some((host, fault));
                }
                let other = usize::from(is_dialer);
                if !self.ended[other] {
                    return Some(if is_dialer {
                        task.listener
                    } else {
                        task.dialer
                    });
                }
            }
        }
        None
    }

    fn result(self, task: &PairTask) -> Result<PairResult, TaskFailure> {
        if let Some((host, fault)) = self.fault {
            return Err(TaskFailure::Failed(host, fault));
        }
        match (self.dialer, self.listener) {
            (Some(dialer), Some(listener)) => Ok(PairResult { dialer, listener }),
            _ => Err(failed(
                task.listener,
                "it ended the measurement before the other end had begun".to_owned(),
            )),
        }
    }
}
