//! The hosts of a run: starts an agent on each, and exchanges messages with them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
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
        messages::{FromPerf, HostFacts, PerfOrder, ToPerf},
        report::{measurand::Measurand, sample::Sample},
        supervised::{HostEnd, HostWork, ONLY_AGENT},
    },
    reach,
    ssh::{
        explain,
        outcome::ranked,
        plan::StageHost,
        protocol::Payload,
        supervisor::{
            driver::{EventSender, LocalEdges, event_queue},
            edge_setup::AddressBook,
        },
    },
};

/// The hosts of a run.
pub(super) struct PerfHosts {
    hosts: Vec<PerfHost>,
    inbox: UnboundedReceiver<(usize, HostNews)>,
    given: Vec<crate::ssh::plan::Addresses>,
    here: Option<String>,
}

/// One host.
struct PerfHost {
    place: StageHost,
    /// The name in messages and in the report: as it was typed.
    name: String,
    events: EventSender,
    facts: Option<HostFacts>,
    /// The reason why the host is lost.
    lost: Option<String>,
    /// The signal that has ended its run.
    signal: Option<u8>,
    has_ended: bool,
}

/// What a host has reported.
#[derive(Debug)]
pub(super) enum HostNews {
    /// A message of its agent.
    Message(FromPerf),
    /// Its run has ended.
    Ended(HostEnd),
}

impl PerfHosts {
    /// Starts an agent at each of the places.
    ///
    /// # Errors
    ///
    /// Fails if this machine cannot start one.
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

    /// Returns the number of hosts.
    pub(super) fn count(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the name of a host.
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
    ///
    /// # Errors
    ///
    /// One sentence for the user, if the message is too long.
    pub(super) fn send(&self, host: usize, message: &ToPerf) -> Result<(), String> {
        let payload = Payload::encode(message).map_err(|error| error.to_string())?;
        self.hosts[host].events.request(ONLY_AGENT, payload);
        Ok(())
    }

    /// Waits for the next news of any host. Returns a message about a task; none if the news was about a host itself,
    /// which is recorded.
    ///
    /// # Cancel safety
    ///
    /// Safe.
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
            Err(_) => HostEnd::default(),
        };
        let _ = news.send((index, HostNews::Ended(end)));
    });
    Ok(events)
}

/// Returns why a run has ended.
fn why(end: &HostEnd) -> String {
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
        !self.args.report.json && !self.args.report.csv
    }

    /// Prints what one run of a measurement has shown, with `-v`.
    pub(super) fn tell_sample(&self, name: &str, what: &Measurand, sample: &Sample) {
        let value = if what.is_rate() {
            format!("{:.3} GB/s", sample.value / 1e9)
        } else {
            format!("{:.2} µs", sample.value)
        };
        let link = sample.link.as_ref().map(|link| format!(" ({link})"));
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
