//! The report of a run: its hosts, and the series of runs of each measurement, as JSON and as CSV; and how two reports
//! differ. Pure, no I/O.

pub(crate) mod measurand;
pub(crate) mod series;

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use self::series::{Series, micros};
use super::check::{memory, rate};
use crate::{
    Cipher,
    perf::{
        check::Finding,
        messages::{AddressFacts, CipherSpeed, DeviceFacts, HostFacts, MemlockFacts, PortFacts},
    },
};

/// The version of the report's form. It changes when a field changes its meaning.
pub(crate) const DOCUMENT_VERSION: u32 = 1;

/// The report of a run of rdperf.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PerfDocument {
    pub(crate) version: u32,
    pub(crate) rdperf: String,
    /// The exit code of the run.
    pub(crate) exit: u8,
    /// The time of the start, in seconds since 1970.
    pub(crate) started: u64,
    /// The command line, quoted for a shell, without a ticket.
    #[serde(default)]
    pub(crate) command: String,
    /// How it was measured: a line for each setting.
    #[serde(default)]
    pub(crate) settings: Vec<String>,
    pub(crate) hosts: Vec<HostSummary>,
    /// What is wrong, and how to repair it. Reports are compared by their measurements only.
    #[serde(default)]
    pub(crate) findings: Vec<Finding>,
    /// What auto would choose for each pair of hosts.
    pub(crate) choices: Vec<PairChoice>,
    /// The measurements.
    pub(crate) series: Vec<Series>,
    pub(crate) errors: Vec<String>,
    /// What limits these hosts.
    pub(crate) verdict: String,
}

/// What auto would choose for a pair of hosts, and why.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PairChoice {
    /// The host that dials.
    pub(crate) from: String,
    /// The host that listens.
    pub(crate) to: String,
    /// "rdma" or "tcp".
    pub(crate) transport: String,
    /// The RDMA port, or the reason why it is TCP.
    pub(crate) reason: String,
    /// What happened to the messages over each pair of RDMA ports, for the user.
    #[serde(default)]
    pub(crate) proofs: Vec<String>,
}

impl PerfDocument {
    /// Returns the host with this name, as it was typed.
    pub(crate) fn host(&self, name: &str) -> Option<&HostSummary> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// Returns the measurements as CSV: a row for each series.
    pub(crate) fn csv(&self) -> String {
        let mut text = CSV_HEADER.to_owned();
        for series in &self.series {
            let medium = series.what.transport().map(|medium| medium.to_string());
            let unit = if series.what.is_rate() {
                "bytes/s"
            } else {
                "us"
            };
            let mut cells = vec![
                series.from.clone(),
                series.to.clone().unwrap_or_default(),
                medium.unwrap_or_default(),
                series.what.to_string(),
                unit.to_owned(),
                number(series.median()),
                number(series.runs.iter().map(|run| run.value).reduce(f64::min)),
                number(series.runs.iter().map(|run| run.value).reduce(f64::max)),
                series.runs.len().to_string(),
                number(series.median_of(|run| Some(run.cpu_dialer))),
                number(series.median_of(|run| Some(run.cpu_listener))),
                number(series.lost()),
                number(series.median_of(|run| run.trips_per_second)),
                number(series.median_of(|run| run.average_us)),
            ];
            let histogram = series.histogram();
            let time = |percentile| {
                let histogram = histogram.as_ref();
                number(histogram.map(|histogram| micros(histogram.percentile(percentile))))
            };
            cells.extend([50.0, 90.0, 99.0, 99.9, 100.0].map(time));
            let cells: Vec<_> = cells.iter().map(|cell| quoted(cell)).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

const CSV_HEADER: &str = "from,to,transport,measurement,unit,median,min,max,runs,cpu_from,cpu_to,loss,trips_per_second,average_us,p50_us,p90_us,p99_us,p99.9_us,max_us\n";

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| {
        let text = format!("{value:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    })
}

/// Returns a cell as CSV requires it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// How a measurement changed from one report to another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The measurement: "fs1 to fs2, TCP, stream, one way".
    pub(crate) name: String,
    /// True if a larger value is a better one.
    pub(crate) is_rate: bool,
    /// The median in the old report; none if it has no such measurement.
    pub(crate) old: Option<f64>,
    /// The median in the new report; none if it has no such measurement.
    pub(crate) new: Option<f64>,
    pub(crate) kind: ChangeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// Two runs of the same thing can differ by so much.
    Noise,
    /// The new median is better by more than the noise.
    Better,
    /// The new median is worse by more than the noise.
    Worse,
    /// Only the old report has the measurement.
    Gone,
    /// Only the new report has the measurement.
    Added,
}

/// Returns how each measurement changed. A change counts if it is larger than `threshold`, a part of the old median,
/// and larger than the spreads of both series together.
pub(crate) fn changes(old: &PerfDocument, new: &PerfDocument, threshold: f64) -> Vec<Change> {
    let same = |one: &Series, other: &Series| {
        one.from == other.from && one.to == other.to && one.what == other.what
    };
    let with_old = old.series.iter().map(|before| {
        let after = new.series.iter().find(|after| same(before, after));
        change(
            before,
            after.and_then(|after| after.median().map(|_| after)),
            threshold,
        )
    });
    let added = new.series.iter().filter(|after| {
        after.median().is_some() && !old.series.iter().any(|before| same(before, after))
    });
    let added = added.map(|after| Change {
        name: name(after),
        is_rate: after.what.is_rate(),
        old: None,
        new: after.median(),
        kind: ChangeKind::Added,
    });
    with_old.chain(added).collect()
}

fn change(before: &Series, after: Option<&Series>, threshold: f64) -> Change {
    let (old, new) = (before.median(), after.and_then(Series::median));
    let kind = match (old, new) {
        (Some(old), Some(new)) => {
            let spreads = before.spread() + after.map_or(0.0, Series::spread);
            // The same factor counts in both directions: half the rate, or twice the time.
            let factor = if old > 0.0 && new > 0.0 {
                new / old
            } else {
                1.0
            };
            let change = factor.max(1.0 / factor) - 1.0;
            if change <= threshold.max(spreads) {
                ChangeKind::Noise
            } else if (factor > 1.0) == before.what.is_rate() {
                ChangeKind::Better
            } else {
                ChangeKind::Worse
            }
        }
        (Some(_), None) => ChangeKind::Gone,
        (None, Some(_)) => ChangeKind::Added,
        (None, None) => ChangeKind::Noise,
    };
    Change {
        name: name(before),
        is_rate: before.what.is_rate(),
        old,
        new,
        kind,
    }
}

/// Returns the name of a measurement for the user.
pub(crate) fn name(series: &Series) -> String {
    let to = series.to.as_ref().map(|to| format!(" to {to}"));
    let medium = series.what.transport().map(|medium| format!("{medium}, "));
    format!(
        "{}{}, {}{}",
        series.from,
        to.unwrap_or_default(),
        medium.unwrap_or_default(),
        series.what
    )
}

/// A host in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostSummary {
    /// The name, as it was typed.
    pub(crate) name: String,
    /// The name that the host has for itself.
    pub(crate) host_name: String,
    pub(crate) version: String,
    pub(crate) kernel: String,
    pub(crate) processor: String,
    /// The number of processors that its agent may use.
    pub(crate) processors: u32,
    /// How fast one thread of it encrypts, with each cipher.
    #[serde(default)]
    pub(crate) ciphers: Vec<CipherSpeed>,
    /// How the frequency of its processors is scaled, where it is.
    pub(crate) governor: Option<String>,
    pub(crate) clock_source: Option<String>,
    /// How much memory its agent may pin.
    pub(crate) memlock: String,
    /// Its interfaces with their addresses, MTU and rate.
    pub(crate) interfaces: Vec<String>,
    /// Its RDMA devices and their ports.
    pub(crate) devices: Vec<String>,
    /// The reason why it cannot use RDMA; none if it can.
    pub(crate) no_rdma: Option<String>,
}

impl HostSummary {
    pub(crate) fn new(name: &str, facts: &HostFacts) -> Self {
        Self {
            name: name.to_owned(),
            host_name: facts.hello.host.clone(),
            version: facts.version.clone(),
            kernel: facts.kernel.clone(),
            processor: facts.processor.clone(),
            processors: facts.processors,
            ciphers: facts.ciphers.clone(),
            governor: facts.governor.clone(),
            clock_source: facts.clock_source.clone(),
            memlock: memlock(&facts.memlock),
            interfaces: facts.addresses.iter().map(interface).collect(),
            devices: facts.devices.iter().flat_map(ports).collect(),
            no_rdma: facts.no_rdma.clone(),
        }
    }

    pub(crate) fn line(&self) -> String {
        let rdma = match &self.no_rdma {
            None => format!("{} of RDMA", counted(self.devices.len(), "port")),
            Some(why) => format!("no RDMA: {why}"),
        };
        format!(
            "{}: rdpipe {}, Linux {}, {} × {}; {rdma}",
            self.name, self.version, self.kernel, self.processors, self.processor
        )
    }

    /// Returns how many bytes one thread encrypts in a second; none if the host has not measured it.
    pub(crate) fn encrypts(&self, cipher: Cipher) -> Option<f64> {
        let found = self.ciphers.iter().find(|speed| speed.cipher == cipher)?;
        let speed = found.rate();
        (speed > 0.0).then_some(speed)
    }

    /// Returns a line for each part of the host.
    pub(crate) fn details(&self) -> Vec<String> {
        let scaled = self
            .governor
            .as_ref()
            .map(|name| format!(", governor {name}"));
        let clock = self
            .clock_source
            .as_ref()
            .map(|name| format!(", clock {name}"));
        let own = format!(
            "memlock {}{}{}",
            self.memlock,
            clock.unwrap_or_default(),
            scaled.unwrap_or_default()
        );
        let speed = |one: &CipherSpeed| format!("{} {}", one.cipher, rate(one.rate()));
        let speeds: Vec<_> = self.ciphers.iter().map(speed).collect();
        let speeds = format!("one thread encrypts with {}", speeds.join(", "));
        let parts = self.interfaces.iter().chain(&self.devices).cloned();
        [own, speeds].into_iter().chain(parts).collect()
    }
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 {
        format!("{count} {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

fn memlock(memlock: &MemlockFacts) -> String {
    match memlock.limit {
        _ if memlock.is_privileged => "unlimited (root)".to_owned(),
        None => "unlimited".to_owned(),
        Some(bytes) => memory(bytes),
    }
}

fn interface(address: &AddressFacts) -> String {
    let AddressFacts {
        netdev,
        address,
        mtu,
        rate_mbps,
    } = address;
    let rate = rate_mbps.map(|mbps| format!(", {}", gigabits(mbps)));
    format!("{netdev}: {address}, MTU {mtu}{}", rate.unwrap_or_default())
}

/// Returns a text for each port of a device, or one for a device without ports.
fn ports(device: &DeviceFacts) -> Vec<String> {
    let DeviceFacts { name, fault, .. } = device;
    if device.ports.is_empty() {
        let fault = fault.as_deref().unwrap_or("has no ports");
        return vec![format!("{name} {fault}")];
    }
    device
        .ports
        .iter()
        .map(|port| port_text(device, port))
        .collect()
}

fn port_text(device: &DeviceFacts, port: &PortFacts) -> String {
    let rate = if device.is_software {
        "in software".to_owned()
    } else {
        gigabits(port.rate_mbps)
    };
    let mut text = format!(
        "{} port {}: {}, {}, {rate}",
        device.name, port.number, port.link_layer, port.state
    );
    if let Some(firmware) = &device.firmware {
        text = format!("{text}, firmware {firmware}");
    }
    for gid in &port.gids {
        text = format!("{text}, {gid}");
    }
    match device.fault.as_ref().or(port.fault.as_ref()) {
        Some(fault) => format!("{text}; it {fault}"),
        None => text,
    }
}

fn gigabits(mbps: u32) -> String {
    format!("{} Gb/s", f64::from(mbps) / 1000.0)
}

/// A size in powers of 1024 where that is exact: `64 B`, `4 KiB`.
pub(crate) struct SizeText(pub(crate) u32);

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 30 && bytes % (1 << 30) == 0 => write!(f, "{} GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} B"),
        }
    }
}
