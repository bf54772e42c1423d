//! What is wrong with a pair of hosts. Pure, no I/O.

use super::{Finding, path::check_path, ports::check_ports, remedies::open_tcp};
use crate::perf::messages::{HostFacts, PathResult, PortPairProof, TaskFault};

/// The difference of two clocks from which on logs and certificates are affected, in milliseconds: a minute.
const CLOCK_LIMIT_MS: u64 = 60_000;

/// One host of a pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairEnd<'a> {
    /// The name of the host as the user gave it: `fs1`.
    pub(crate) name: &'a str,
    /// What its agent has found out.
    pub(crate) facts: &'a HostFacts,
}

/// What is known about a pair of hosts. Each task has a result, or none if it was not carried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairFacts<'a> {
    /// The end that dials.
    pub(crate) dialer: PairEnd<'a>,
    /// The end that listens.
    pub(crate) listener: PairEnd<'a>,
    /// The address at which the end that dials has reached the end that listens, or why it has not.
    pub(crate) reached: Option<Result<&'a str, &'a TaskFault>>,
    /// The address at which the end that listens has reached the end that dials, or why it has not.
    pub(crate) reached_back: Option<Result<&'a str, &'a TaskFault>>,
    /// The packets from the end that dials to the end that listens.
    pub(crate) path: Option<&'a PathResult>,
    /// The packets from the end that listens to the end that dials.
    pub(crate) path_back: Option<&'a PathResult>,
    /// The pairs of RDMA ports, the best first, or why none was tried.
    pub(crate) proofs: Option<Result<&'a [PortPairProof], &'a TaskFault>>,
    /// The first and the last port to listen on, if the user gave them.
    pub(crate) ports: Option<(u16, u16)>,
    /// How far the clock of the end that listens is ahead, in milliseconds.
    pub(crate) clock_difference_ms: Option<i64>,
}

impl PairFacts<'_> {
    /// Returns the name of the pair: `fs1 to fs2`.
    pub(super) fn subject(&self) -> String {
        subject(self.dialer, self.listener)
    }
}

/// Returns what is wrong with a pair of hosts, the worst first, apart from what [`check_host`](super::check_host) finds at each
/// of them. The user `insists` on RDMA if no other transport is allowed.
pub(crate) fn check_pair(pair: &PairFacts<'_>, insists: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(versions(pair));
    findings.extend(tcp(pair));
    findings.extend(check_path(pair));
    findings.extend(check_ports(pair, insists));
    findings.extend(clocks(pair));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn subject(from: PairEnd<'_>, to: PairEnd<'_>) -> String {
    format!("{} to {}", from.name, to.name)
}

fn versions(pair: &PairFacts<'_>) -> Option<Finding> {
    let (dialer, listener) = (pair.dialer, pair.listener);
    let versions = (&dialer.facts.version, &listener.facts.version);
    if versions.0 == versions.1 {
        return None;
    }
    let what = format!(
        "{} has rdpipe {}, and {} has {}",
        dialer.name, versions.0, listener.name, versions.1
    );
    let finding = Finding::repair("version", &pair.subject(), what);
    Some(finding.with("install the same version on both: `cargo install --locked --path .`"))
}

/// Returns the directions in which no TCP connection works.
fn tcp(pair: &PairFacts<'_>) -> Vec<Finding> {
    let (dialer, listener) = (pair.dialer, pair.listener);
    let forward = (dialer, listener, pair.reached, pair.reached_back);
    let backward = (listener, dialer, pair.reached_back, pair.reached);
    let blocked = [forward, backward].into_iter();
    let findings = blocked.filter_map(|(from, to, result, other)| {
        let fault = result?.err()?;
        Some(blocked_tcp(from, to, fault, other, pair.ports))
    });
    findings.collect()
}

/// Describes a direction without TCP. `other` is the result of the other direction.
fn blocked_tcp(
    from: PairEnd<'_>,
    to: PairEnd<'_>,
    fault: &TaskFault,
    other: Option<Result<&str, &TaskFault>>,
    ports: Option<(u16, u16)>,
) -> Finding {
    let subject = subject(from, to);
    if !fault.is_unreachable {
        return Finding::repair("reach", &subject, &fault.text);
    }
    let rest = match other {
        Some(Ok(_)) => format!("; connections from {} to {} work", to.name, from.name),
        Some(Err(_)) => "; nor does the other direction work".to_owned(),
        None => String::new(),
    };
    let (from, to) = (from.name, to.name);
    let what = format!(
        "no TCP connection from {from} to {to} works: {}{rest}",
        fault.text
    );
    Finding::repair("firewall-tcp", &subject, what).with(open_tcp(to, ports))
}

fn clocks(pair: &PairFacts<'_>) -> Option<Finding> {
    let difference = pair.clock_difference_ms?;
    if difference.unsigned_abs() <= CLOCK_LIMIT_MS {
        return None;
    }
    let (ahead, behind) = if difference > 0 {
        (pair.listener.name, pair.dialer.name)
    } else {
        (pair.dialer.name, pair.listener.name)
    };
    let seconds = difference.unsigned_abs() / 1000;
    let what = format!("the clock of {ahead} is {seconds} s ahead of that of {behind}");
    let finding = Finding::note("clock", &pair.subject(), what);
    Some(finding.with("on both: `sudo timedatectl set-ntp true`, or `sudo chronyc makestep`"))
}
