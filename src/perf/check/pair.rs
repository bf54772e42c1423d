//! What is wrong with a pair of hosts. Pure, no I/O.

use super::{
    Finding,
    pair_facts::{PairEnd, PairFacts, subject},
    path::check_path,
    ports::check_ports,
    remedies::open_tcp,
};
use crate::perf::messages::TaskFault;

/// The difference of two clocks from which on logs and certificates are affected, in milliseconds: a minute.
const CLOCK_LIMIT_MS: u64 = 60_000;

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
