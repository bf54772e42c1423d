//! A host in a report: what its agent has found out, for the user.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::perf::{
    check::amounts::memory,
    messages::{AddressFacts, DeviceFacts, HostFacts, MemlockFacts, PortFacts, WaitMode},
};

/// A host in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostSummary {
    /// The name, as it was typed.
    pub(crate) name: String,
    /// The name that the host has for itself.
    pub(crate) host_name: String,
    /// The version of its rdpipe.
    pub(crate) version: String,
    /// The release of its kernel.
    pub(crate) kernel: String,
    /// Its processor.
    pub(crate) processor: String,
    /// The number of processors that its agent may use.
    pub(crate) processors: u32,
    /// How the frequency of its processors is scaled, where it is.
    pub(crate) governor: Option<String>,
    /// The clock of its kernel.
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
    /// Returns the summary of a host.
    pub(crate) fn new(name: &str, facts: &HostFacts) -> Self {
        Self {
            name: name.to_owned(),
            host_name: facts.hello.host.clone(),
            version: facts.version.clone(),
            kernel: facts.kernel.clone(),
            processor: facts.processor.clone(),
            processors: facts.processors,
            governor: facts.governor.clone(),
            clock_source: facts.clock_source.clone(),
            memlock: memlock(&facts.memlock),
            interfaces: facts.addresses.iter().map(interface).collect(),
            devices: facts.devices.iter().flat_map(ports).collect(),
            no_rdma: facts.no_rdma.clone(),
        }
    }

    /// Returns one line about the host.
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
        let parts = self.interfaces.iter().chain(&self.devices).cloned();
        std::iter::once(own).chain(parts).collect()
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

/// [`WaitMode`] in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WaitName {
    Adaptive,
    Event,
    Busy,
}

impl From<WaitName> for WaitMode {
    fn from(name: WaitName) -> Self {
        match name {
            WaitName::Adaptive => Self::Adaptive,
            WaitName::Event => Self::Event,
            WaitName::Busy => Self::Busy,
        }
    }
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
