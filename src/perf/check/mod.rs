//! What is wrong with a host, with a pair of hosts and with the rates between them, how to repair it, and what limits
//! them. Pure, no I/O.

mod host;
mod pair;
mod rates;
#[cfg(test)]
pub(crate) mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::ssh::quote::word;

pub(crate) use self::{
    host::check_host,
    pair::{PairEnd, PairFacts, automatic_choice, check_pair},
    rates::{
        MeasuredRate, PairRate, TransferEnd, TransferRates, best_rails, lossy, slow_pairs, verdict,
    },
};

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It is good to know, and needs no action.
    Note,
    /// Something does not work as it should until it is repaired.
    Repair,
}

/// What is wrong with a host or a pair of hosts, and what repairs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// How serious the finding is.
    pub(crate) severity: Severity,
    /// The host or the pair: `fs1`, `fs1 to fs2`.
    pub(crate) subject: String,
    /// What was found: one sentence without a full stop at its end.
    pub(crate) what: String,
    /// What a person can type to repair it.
    pub(crate) remedy: Option<String>,
    /// The name of this kind of finding for other programs. It never changes.
    pub(crate) code: Cow<'static, str>,
}

impl Finding {
    /// Makes a finding that needs no action.
    fn note(code: &'static str, subject: &str, what: impl Into<String>) -> Self {
        Self {
            severity: Severity::Note,
            subject: subject.to_owned(),
            what: what.into(),
            remedy: None,
            code: code.into(),
        }
    }

    fn repair(code: &'static str, subject: &str, what: impl Into<String>) -> Self {
        Self {
            severity: Severity::Repair,
            ..Self::note(code, subject, what)
        }
    }

    /// Adds what repairs it.
    fn with(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Sets the severity to [`Severity::Repair`] if `is_serious`, otherwise to [`Severity::Note`].
    fn serious_if(mut self, is_serious: bool) -> Self {
        self.severity = if is_serious {
            Severity::Repair
        } else {
            Severity::Note
        };
        self
    }
}

/// The ports that are proposed to a user who has not chosen any with `-p`.
const PROPOSED_PORTS: (u16, u16) = (7691, 7699);

/// The command that allows any amount of memory to be pinned, for all users from their next login on.
const RAISE_MEMLOCK: &str = "`ulimit -l unlimited` in the shell that starts it; for all users: `printf '* soft memlock \
     unlimited\\n* hard memlock unlimited\\n' | sudo tee /etc/security/limits.d/rdma.conf`, and log in again; \
     in a systemd unit: LimitMEMLOCK=infinity; in a container: `docker run --ulimit memlock=-1`";

/// The command that adds RDMA in software to an interface.
fn soft_roce(netdev: &str) -> String {
    let netdev = word(netdev);
    format!(
        "RDMA in software, for tests: `sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev {netdev}`"
    )
}

/// The commands that give users the rights on a device file.
fn device_rights(file: &str) -> String {
    let file = word(file);
    format!(
        "`sudo chmod 666 {file}`; for good: `echo 'KERNEL==\"uverbs*\", GROUP=\"rdma\", MODE=\"0660\"' | \
         sudo tee /etc/udev/rules.d/90-rdma.rules && sudo udevadm trigger`, and `sudo usermod -aG rdma $USER`"
    )
}

/// The commands that open TCP ports on a host, and the option that uses these ports.
fn open_tcp(host: &str, ports: Option<(u16, u16)>) -> String {
    let (first, last) = ports.unwrap_or(PROPOSED_PORTS);
    let range = if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    };
    let open = open_ports(&range, "tcp");
    match ports {
        Some(_) => format!("on {host}: {open}"),
        None => format!("on {host}: {open}; then use -p {range}"),
    }
}

/// The commands that open the port of RoCE v2 on two hosts.
fn open_roce(first: &str, second: &str) -> String {
    let open = open_ports("4791", "udp");
    format!("on {first} and {second}: {open}; on the switches between them too")
}

/// The command that sets the MTU of an interface.
fn set_mtu(netdev: &str, mtu: u32) -> String {
    format!("`sudo ip link set dev {} mtu {mtu}`", word(netdev))
}

fn open_ports(range: &str, protocol: &str) -> String {
    format!(
        "`sudo firewall-cmd --add-port={range}/{protocol}` or `sudo nft insert rule inet filter input {protocol} \
         dport {range} accept`"
    )
}

/// Formats a size of memory in whole KiB or in MiB, as `ulimit -l` counts.
pub(in crate::perf) fn memory(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes < MIB {
        format!("{} KiB", bytes.div_ceil(1024))
    } else if bytes % MIB == 0 {
        format!("{} MiB", bytes / MIB)
    } else {
        #[allow(clippy::cast_precision_loss, reason = "a digit after the point")]
        let mebibytes = bytes as f64 / MIB as f64;
        format!("{mebibytes:.1} MiB")
    }
}

/// Formats bytes per second: `1.1 GB/s`, `250 MB/s`.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    const UNITS: &[(f64, &str)] = &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")];
    let unit = UNITS.iter().find(|(size, _)| bytes_per_second >= *size);
    match unit {
        Some((size, unit)) if bytes_per_second / size >= 100.0 => {
            format!("{:.0} {unit}", bytes_per_second / size)
        }
        Some((size, unit)) => format!("{:.1} {unit}", bytes_per_second / size),
        None => format!("{bytes_per_second:.0} B/s"),
    }
}

/// Formats a part of a whole: `97%`, `0.3%`.
fn share(part: f64) -> String {
    let percent = part * 100.0;
    if percent >= 10.0 {
        format!("{percent:.0}%")
    } else {
        format!("{percent:.1}%")
    }
}
