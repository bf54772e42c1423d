//! The checks of a run: every host alone, and every pair of hosts.

use super::{
    hosts::{Coordinator, PairTask, RunContext, TaskError},
    measuring::MeasuredPair,
};
use crate::{
    Transport, TransportPolicy,
    cli::args::HostOptions,
    perf::{
        check::{Finding, PairEnd, PairFacts, automatic_choice, check_host, check_pair},
        messages::{HostFacts, PathResult, PortPairProof, TaskFault, TaskKind, TaskResult},
        report::PairChoice,
    },
    ssh::protocol::ViaSsh,
};

/// What the checks have found.
pub(super) struct Checked {
    pub(super) findings: Vec<Finding>,
    pub(super) pairs: Vec<CheckedPair>,
}

/// Two hosts that were checked.
pub(super) struct CheckedPair {
    pair: MeasuredPair,
    pub(super) choice: PairChoice,
}

impl CheckedPair {
    pub(super) fn measured(&self) -> Option<MeasuredPair> {
        (!self.pair.media.is_empty()).then(|| self.pair.clone())
    }
}

/// What two hosts have shown, in both directions.
struct PairProbes {
    /// Whether the second host was reached by the first one, and the other way round; none if that was not tried.
    reached: [Option<Result<String, TaskFault>>; 2],
    /// The packets that arrived in each direction.
    paths: [Option<PathResult>; 2],
    /// The messages over RDMA; none if that was not tried.
    proofs: Option<Result<Vec<PortPairProof>, TaskFault>>,
}

impl PairProbes {
    /// Returns what is known about the two hosts.
    fn facts<'a>(
        &'a self,
        dialer: PairEnd<'a>,
        listener: PairEnd<'a>,
        options: &HostOptions,
    ) -> PairFacts<'a> {
        let reached = |end: usize| {
            let reached = self.reached[end].as_ref();
            reached.map(|reached| reached.as_ref().map(String::as_str))
        };
        PairFacts {
            dialer,
            listener,
            reached: reached(0),
            reached_back: reached(1),
            path: self.paths[0].as_ref(),
            path_back: self.paths[1].as_ref(),
            proofs: self.proofs.as_ref().map(|proofs| proofs.as_deref()),
            ports: options.ports,
            may_go_through_ssh: options.via_ssh != ViaSsh::Never,
            clock_difference_ms: clock_difference(dialer.facts, listener.facts),
        }
    }
}

/// Returns how far the clock of `other` is ahead of that of `one`, in milliseconds. The two were asked at about the
/// same time.
fn clock_difference(one: &HostFacts, other: &HostFacts) -> Option<i64> {
    let clock = |facts: &HostFacts| i64::try_from(facts.clock_ms).ok();
    Some(clock(other)? - clock(one)?)
}

/// Checks all hosts that have answered.
pub(super) async fn check(coordinator: &mut Coordinator, context: &RunContext<'_>) -> Checked {
    let insists = context.args.stream.transport == TransportPolicy::Rdma;
    let mut findings = Vec::new();
    for host in 0..coordinator.hosts.count() {
        if let Some(facts) = coordinator.hosts.facts(host) {
            findings.extend(check_host(coordinator.hosts.name(host), facts, insists));
        }
    }
    let mut pairs = Vec::new();
    for first in 0..coordinator.hosts.count() {
        for second in first + 1..coordinator.hosts.count() {
            if coordinator.is_interrupted() {
                break;
            }
            let names = [first, second].map(|host| coordinator.hosts.name(host).to_owned());
            context
                .steps
                .begin(&format!("checking {} and {}", names[0], names[1]));
            let probes = probe(coordinator, context, [first, second]).await;
            let (Some(first_facts), Some(second_facts)) = (
                coordinator.hosts.facts(first),
                coordinator.hosts.facts(second),
            ) else {
                continue;
            };
            let end = |host: usize, facts| PairEnd {
                name: &names[host],
                facts,
            };
            let (dialer, listener) = (end(0, first_facts), end(1, second_facts));
            let facts = probes.facts(dialer, listener, &context.args.hosts);
            findings.extend(check_pair(&facts, insists));
            pairs.push(checked(&facts, &probes, context, [first, second]));
        }
    }
    Checked { findings, pairs }
}

/// Returns what works between two hosts.
fn checked(
    facts: &PairFacts<'_>,
    probes: &PairProbes,
    context: &RunContext<'_>,
    [first, second]: [usize; 2],
) -> CheckedPair {
    let is_reached = |end: usize| matches!(probes.reached[end], Some(Ok(_)));
    let proofs = match &probes.proofs {
        Some(Ok(proofs)) => proofs.clone(),
        _ => Vec::new(),
    };
    let texts = proofs.iter().map(proof_text).collect();
    let ports = proofs.into_iter().find(PortPairProof::works);
    let policy = context.args.stream.transport;
    let mut media = Vec::new();
    if is_reached(0) || is_reached(1) {
        if policy != TransportPolicy::Rdma {
            media.push(Transport::Tcp);
        }
        if policy != TransportPolicy::Tcp && ports.is_some() {
            media.push(Transport::Rdma);
        }
    }
    // The end that can be reached listens.
    let (dialer, listener) = if is_reached(0) || !is_reached(1) {
        (first, second)
    } else {
        (second, first)
    };
    let (is_rdma, reason) = if facts.goes_through_ssh() {
        (
            false,
            "through ssh: the hosts do not reach each other".to_owned(),
        )
    } else {
        automatic_choice(facts)
    };
    CheckedPair {
        pair: MeasuredPair {
            dialer,
            listener,
            media,
            ports,
        },
        choice: PairChoice {
            from: facts.dialer.name.to_owned(),
            to: facts.listener.name.to_owned(),
            transport: if is_rdma { "RDMA" } else { "TCP" }.to_owned(),
            reason,
            proofs: texts,
        },
    }
}

/// Returns what happened to the messages over a pair of RDMA ports.
fn proof_text(proof: &PortPairProof) -> String {
    let message = |what: &str, result: &Result<u64, String>| match result {
        Ok(nanos) => format!("{what} there and back in {} µs", nanos / 1000),
        Err(why) => format!("{what} lost ({why})"),
    };
    format!(
        "{} to {}, MTU {}: {}, {}",
        proof.dialer_text,
        proof.listener_text,
        proof.mtu,
        message("a short message", &proof.short),
        message("a long one", &proof.long)
    )
}

/// Lets two hosts reach each other in every way.
async fn probe(
    coordinator: &mut Coordinator,
    context: &RunContext<'_>,
    [first, second]: [usize; 2],
) -> PairProbes {
    let mut probes = PairProbes {
        reached: [None, None],
        paths: [None, None],
        proofs: None,
    };
    let directions = [(first, second), (second, first)];
    for (end, (dialer, listener)) in directions.into_iter().enumerate() {
        // A host that was reached by a ticket connects to no other.
        if coordinator.hosts.only_listens(dialer) {
            continue;
        }
        match task(coordinator, dialer, listener, TaskKind::Reach).await {
            Ok(TaskResult::Reached { address }) => probes.reached[end] = Some(Ok(address)),
            Ok(_) => continue,
            Err(Some(fault)) => {
                probes.reached[end] = Some(Err(fault));
                continue;
            }
            Err(None) => return probes,
        }
        if let Ok(TaskResult::Path(path)) =
            task(coordinator, dialer, listener, TaskKind::Path).await
        {
            probes.paths[end] = Some(path);
        }
    }
    let have_rdma = [first, second].map(|host| coordinator.hosts.has_rdma(host)) == [true; 2];
    let policy = context.args.stream.transport;
    if policy != TransportPolicy::Tcp && have_rdma {
        let is_backward = !matches!(probes.reached[0], Some(Ok(_)));
        let (dialer, listener) = directions[usize::from(is_backward)];
        if matches!(probes.reached[usize::from(is_backward)], Some(Ok(_))) {
            probes.proofs = match task(coordinator, dialer, listener, TaskKind::Ports).await {
                Ok(TaskResult::Ports(proofs)) => Some(Ok(proofs)),
                Ok(_) | Err(None) => None,
                Err(Some(fault)) => Some(Err(fault)),
            };
        }
    }
    probes
}

/// Returns the result of the end that dials. Fails with none if a host is lost.
async fn task(
    coordinator: &mut Coordinator,
    dialer: usize,
    listener: usize,
    kind: TaskKind,
) -> Result<TaskResult, Option<TaskFault>> {
    let task = PairTask {
        dialer,
        listener,
        transport: TransportPolicy::Tcp,
        kind,
    };
    match coordinator.run(&task).await {
        Ok(result) => Ok(result.dialer),
        Err(TaskError::Lost(_)) => Err(None),
        Err(TaskError::Failed(_, fault)) => Err(Some(fault)),
    }
}
