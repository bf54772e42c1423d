//! The hosts of a run: starts an agent on each, exchanges messages with them, and lets two of them carry out a task
//! together, one task at a time.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    Key, TransportPolicy,
    cli::{
        args::RdperfArgs,
        shared::{
            message::Console,
            progress::StepsProgress,
            signals::EndingCaught,
            supervision::{OwnEdges, Supervision},
        },
    },
    perf::{
        job::{HostWork, ONLY_AGENT},
        messages::{
            FromPerf, HostFacts, PerfOrder, StorageTask, TaskFault, TaskKind, TaskOrder,
            TaskResult, TaskTarget, ToPerf,
        },
        report::{measurand::Measurand, series::Sample},
    },
    reach,
    ssh::{
        explain,
        outcome::ranked,
        plan::StageHost,
        protocol::Payload,
        supervisor::{EventSender, LocalEdges, RunOutcome, edge_setup::AddressBook, event_queue},
    },
};

/// The hosts of a run.
pub(super) struct PerfHosts {
    hosts: Vec<PerfHost>,
    inbox: UnboundedReceiver<(usize, HostNews)>,
    given: Vec<crate::ssh::plan::Addresses>,
    here: Option<String>,
}

struct PerfHost {
    place: StageHost,
    /// The name in messages and in the report: as it was typed.
    name: String,
    events: EventSender,
    facts: Option<HostFacts>,
    lost: Option<String>,
    /// The signal that has ended its run.
    signal: Option<u8>,
    has_ended: bool,
}

#[derive(Debug)]
pub(super) enum HostNews {
    Message(FromPerf),
    Ended(RunOutcome),
}

impl PerfHosts {
    /// Starts an agent at each of the places.
    pub(super) fn start(
        supervision: &Supervision<'_>,
        places: &[(StageHost, String)],
        order: &PerfOrder,
        signal: &EndingCaught,
    ) -> anyhow::Result<Self> {
        let (sender, inbox) = unbounded_channel();
        let start = |(index, (place, name)): (usize, &(StageHost, String))| {
            let events = start(supervision, (index, place, name), order, signal, &sender)?;
            Ok(PerfHost {
                place: place.clone(),
                name: name.clone(),
                events,
                facts: None,
                lost: None,
                signal: None,
                has_ended: false,
            })
        };
        let hosts = places.iter().enumerate().map(start);
        Ok(Self {
            hosts: hosts.collect::<anyhow::Result<_>>()?,
            inbox,
            given: supervision.hosts.addresses.clone(),
            here: supervision.hosts.here(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.hosts.len()
    }

    pub(super) fn name(&self, host: usize) -> &str {
        &self.hosts[host].name
    }

    /// Returns true if the host was reached without ssh, by a ticket. It only listens.
    pub(super) fn only_listens(&self, host: usize) -> bool {
        matches!(self.hosts[host].place, StageHost::Server { .. })
    }

    /// Returns what a host has reported about itself, while it is not lost.
    pub(super) fn facts(&self, host: usize) -> Option<&HostFacts> {
        let host = &self.hosts[host];
        host.facts.as_ref().filter(|_| host.lost.is_none())
    }

    /// Returns true if a host has answered and can use RDMA.
    pub(super) fn has_rdma(&self, host: usize) -> bool {
        self.facts(host)
            .is_some_and(|facts| facts.no_rdma.is_none())
    }

    /// Returns why a host is lost; none if it is not.
    pub(super) fn lost(&self, host: usize) -> Option<&str> {
        self.hosts[host].lost.as_deref()
    }

    /// Returns the signal that has ended the run of all hosts, if there was one.
    pub(super) fn signal(&self) -> Option<u8> {
        self.hosts.iter().find_map(|host| host.signal)
    }

    /// Sends a message to a host.
    /// Fails if the message is too long.
    pub(super) fn send(&self, host: usize, message: &ToPerf) -> Result<(), String> {
        let payload = Payload::encode(message).map_err(|error| error.to_string())?;
        self.hosts[host].events.request(ONLY_AGENT, payload);
        Ok(())
    }

    /// Waits for the next news of any host. Returns a message about a task; none if the news was about a host itself,
    /// which is recorded.
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<(usize, FromPerf)> {
        let (index, news) = self.inbox.recv().await?;
        let host = &mut self.hosts[index];
        match news {
            HostNews::Message(FromPerf::Host(facts)) => {
                let mut facts = *facts;
                // Other hosts connect to these addresses, so a hostile host must not choose any number of them.
                facts.hello.addresses = reach::usable(facts.hello.addresses);
                host.facts = Some(facts);
                None
            }
            HostNews::Message(message) => Some((index, message)),
            HostNews::Ended(end) => {
                host.has_ended = true;
                host.signal = end.signal;
                host.lost = Some(why(&end));
                None
            }
        }
    }

    /// Waits until every host has reported its facts or is lost.
    pub(super) async fn gather(&mut self) {
        while self
            .hosts
            .iter()
            .any(|host| host.facts.is_none() && host.lost.is_none())
        {
            self.next().await;
        }
    }

    /// Ends all agents, and waits until they have ended.
    pub(super) async fn finish(&mut self) {
        let lost: Vec<_> = self.hosts.iter().map(|host| host.lost.clone()).collect();
        for host in 0..self.hosts.len() {
            let _ = self.send(host, &ToPerf::Finish);
        }
        while self.hosts.iter().any(|host| !host.has_ended) {
            self.next().await;
        }
        for (host, lost) in self.hosts.iter_mut().zip(lost) {
            // A host that has ended as it was told to is not lost.
            host.lost = lost;
        }
    }

    /// Returns the addresses at which `dialer` can reach `listener`, the best first.
    pub(super) fn addresses(&self, dialer: usize, listener: usize) -> Vec<String> {
        let machine = |host: usize| {
            let facts = self.hosts[host].facts.as_ref();
            facts.map(|facts| &facts.hello.machine)
        };
        let is_same = machine(dialer).is_some() && machine(dialer) == machine(listener);
        let listener = &self.hosts[listener];
        let hello = listener.facts.as_ref().map(|facts| &facts.hello);
        AddressBook {
            given: &self.given,
            here: self.here.as_deref(),
        }
        .addresses(&listener.place, hello, is_same)
    }
}

/// Starts the run of one host. Returns the sender for messages to its agent.
fn start(
    supervision: &Supervision<'_>,
    (index, place, name): (usize, &StageHost, &str),
    order: &PerfOrder,
    signal: &EndingCaught,
    news: &UnboundedSender<(usize, HostNews)>,
) -> anyhow::Result<EventSender> {
    let (events, queue) = event_queue();
    let own = OwnEdges {
        edges: LocalEdges::new(),
        events: events.clone(),
        queue,
    };
    let messages = news.clone();
    let observe = Box::new(move |work: &mut HostWork| {
        for message in work.take_messages() {
            let _ = messages.send((index, HostNews::Message(message)));
        }
    });
    let work = HostWork::new(place.clone(), order.clone());
    let names = vec![name.to_owned()];
    let running = supervision.start(work, names, &[], own, observe, signal.clone())?;
    let news = news.clone();
    supervision.control.spawn(async move {
        let end = match running.await {
            Ok(summary) => summary.outcome,
            Err(_) => RunOutcome::default(),
        };
        let _ = news.send((index, HostNews::Ended(end)));
    });
    Ok(events)
}

fn why(end: &RunOutcome) -> String {
    if let Some(number) = end.signal {
        return format!("interrupted by {}", explain::signal(number));
    }
    match ranked(&end.causes).first() {
        Some(cause) => cause.fault.text.clone(),
        None => "its agent ended before its work was done".to_owned(),
    }
}

/// What all parts of a run share.
pub(super) struct RunContext<'a> {
    pub(super) args: &'a RdperfArgs,
    pub(super) console: &'a Console,
    pub(super) steps: SharedSteps,
}

impl RunContext<'_> {
    /// Returns true if the report is for people, and not for programs.
    pub(super) fn is_for_people(&self) -> bool {
        !self.args.messages.json.is_given() && !self.args.csv
    }

    /// Prints what one run of a measurement has shown, with `-v`.
    pub(super) fn tell_sample(&self, name: &str, what: &Measurand, sample: &Sample) {
        let value = if what.is_rate() {
            format!("{:.3} GB/s", sample.value / 1e9)
        } else {
            format!("{:.2} µs", sample.value)
        };
        let link = sample.link.as_ref().map(|link| {
            let cipher = sample.cipher.map(|cipher| cipher.to_string());
            format!(
                " ({link}), {}",
                cipher.as_deref().unwrap_or("not encrypted")
            )
        });
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
    pub(super) transport: TransportPolicy,
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
pub(super) enum TaskError {
    /// A host is lost. Its error is printed with the host.
    Lost(usize),
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
    pub(super) fn new(hosts: PerfHosts) -> Self {
        Self { hosts, next_id: 0 }
    }

    /// Lets two hosts carry out a task. Returns when both have ended it.
    pub(super) async fn run(&mut self, task: &PairTask) -> Result<PairResult, TaskError> {
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
            target: None,
            kind: task.kind.clone(),
        };
        let mut dial_order = Some(order(task.listener));
        self.tell(task.listener, &ToPerf::Task(order(task.dialer)))?;
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
                    return Err(TaskError::Lost(host));
                }
            }
            match news {
                Some((host, FromPerf::Listening { id: of, port }))
                    if of == id && host == task.listener =>
                {
                    let Some(mut order) = dial_order.take() else {
                        continue;
                    };
                    progress.ended[0] = false;
                    let addresses = self.hosts.addresses(task.dialer, task.listener);
                    order.target = Some(TaskTarget { addresses, port });
                    self.tell(task.dialer, &ToPerf::Task(order))?;
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
    ) -> Result<TaskResult, TaskError> {
        let id = self.new_id();
        self.tell(host, &ToPerf::Storage { id, task })?;
        loop {
            let news = self.hosts.next().await;
            if self.hosts.lost(host).is_some() {
                return Err(TaskError::Lost(host));
            }
            if let Some((from, FromPerf::Done { id: of, result })) = news
                && (from, of) == (host, id)
            {
                return result.map_err(|fault| TaskError::Failed(host, fault));
            }
        }
    }

    /// Returns true if a signal has ended the run.
    pub(super) fn is_interrupted(&self) -> bool {
        self.hosts.signal().is_some()
    }

    /// Returns the text of a failure: which host failed, and why.
    pub(super) fn text(&self, failure: &TaskError) -> String {
        match failure {
            TaskError::Lost(host) => {
                let why = self.hosts.lost(*host).unwrap_or("it is lost");
                format!("{}: {why}", self.hosts.name(*host))
            }
            TaskError::Failed(host, fault) => {
                format!("{}: {}", self.hosts.name(*host), fault.text)
            }
        }
    }

    fn tell(&self, host: usize, message: &ToPerf) -> Result<(), TaskError> {
        if self.hosts.lost(host).is_some() {
            return Err(TaskError::Lost(host));
        }
        let sent = self.hosts.send(host, message);
        sent.map_err(|why| failed(host, why))
    }

    fn new_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }
}

fn failed(host: usize, why: String) -> TaskError {
    TaskError::Failed(host, why.into())
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

    fn result(self, task: &PairTask) -> Result<PairResult, TaskError> {
        if let Some((host, fault)) = self.fault {
            return Err(TaskError::Failed(host, fault));
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
