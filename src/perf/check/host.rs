//! What is wrong with one host. Pure, no I/O.

use super::{
    Finding,
    amounts::memory,
    finding::{RAISE_MEMLOCK, device_rights, soft_roce},
};
use crate::perf::messages::{DeviceFacts, HostFacts, PortFacts};

/// The clock sources that take a system call or a slow device for each reading of the time.
const SLOW_CLOCKS: &[&str] = &["acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies"];

/// Returns what is wrong with a host, the worst first. Without RDMA a host uses TCP, so that a lack of it is a note
/// unless the user `insists` on RDMA.
pub(crate) fn check_host(name: &str, facts: &HostFacts, insists: bool) -> Vec<Finding> {
    let mut findings = Vec::from_iter(build(name, facts, insists));
    if facts.has_rdma_build {
        findings.extend(no_device(name, facts, insists));
        let is_usable = facts.devices.iter().any(is_usable);
        for device in &facts.devices {
            findings.extend(device_fault(name, device, is_usable, insists));
            findings.extend(port_faults(name, device, is_usable));
        }
        findings.extend(memlock(name, facts));
        let unexplained = unexplained(name, facts, &findings);
        findings.extend(unexplained);
    }
    findings.extend(governor(name, facts));
    findings.extend(clock_source(name, facts));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Returns true if the device has a port that can be used.
fn is_usable(device: &DeviceFacts) -> bool {
    device.fault.is_none()
        && device.forbidden_file.is_none()
        && device.ports.iter().any(|port| port.fault.is_none())
}

fn build(name: &str, facts: &HostFacts, insists: bool) -> Option<Finding> {
    if facts.has_rdma_build {
        return None;
    }
    let hardware = facts.devices.iter().find(|device| !device.is_software);
    let what = match hardware {
        Some(device) => format!(
            "this rdpipe was built without RDMA, and the host has the RDMA device {}",
            device.name
        ),
        None => "this rdpipe was built without RDMA".to_owned(),
    };
    let finding = Finding::note("no-rdma-build", name, what);
    let finding = finding.with("build it with RDMA: `cargo install --locked --path .`");
    Some(finding.serious_if(insists || hardware.is_some()))
}

fn no_device(name: &str, facts: &HostFacts, insists: bool) -> Option<Finding> {
    if !facts.devices.is_empty() {
        return None;
    }
    let netdev = facts.addresses.first();
    let netdev = netdev.map_or("eth0", |address| address.netdev.as_str());
    let what = if insists {
        "no RDMA device"
    } else {
        "no RDMA device: the data goes over TCP"
    };
    let finding = Finding::note("no-rdma", name, what);
    Some(finding.with(soft_roce(netdev)).serious_if(insists))
}

fn device_fault(
    name: &str,
    device: &DeviceFacts,
    is_usable: bool,
    insists: bool,
) -> Option<Finding> {
    if let Some(file) = &device.forbidden_file {
        let what = format!("{} may not be used: no rights on {file}", device.name);
        return Some(Finding::repair("device-rights", name, what).with(device_rights(file)));
    }
    let fault = device.fault.as_ref()?;
    let finding = Finding::note("device", name, format!("{} {fault}", device.name));
    Some(if fault.contains("ib_uverbs") {
        finding.with("`sudo modprobe ib_uverbs`").serious_if(true)
    } else if fault.contains("/dev/infiniband") {
        let remedy = "`modprobe ib_uverbs`; in a container: `docker run --device /dev/infiniband`";
        finding.with(remedy).serious_if(true)
    } else {
        // A kind of card that is not used, and that no command changes.
        finding.serious_if(insists && !is_usable)
    })
}

/// Returns the faults of ports. A card has ports without a cable, so that they are notes if another port can be used.
fn port_faults(name: &str, device: &DeviceFacts, is_usable: bool) -> Vec<Finding> {
    if device.fault.is_some() || device.forbidden_file.is_some() {
        return Vec::new();
    }
    let faulty = device.ports.iter().filter_map(|port| {
        let fault = port.fault.as_ref()?;
        let what = format!("{} port {} {fault}", device.name, port.number);
        let is_down = port.state != "ACTIVE";
        let code = if is_down { "port-down" } else { "port" };
        let finding = Finding::repair(code, name, what).serious_if(!is_usable);
        Some(match port_remedy(device, port) {
            Some(remedy) => finding.with(remedy),
            None => finding,
        })
    });
    faulty.collect()
}

fn port_remedy(device: &DeviceFacts, port: &PortFacts) -> Option<String> {
    let netdev = port.netdev.as_deref().unwrap_or("INTERFACE");
    match (port.link_layer.as_str(), port.state.as_str()) {
        ("InfiniBand", "INIT") => {
            Some("start a subnet manager on one host of the fabric: `sudo opensm -B`".to_owned())
        }
        ("InfiniBand", "DOWN") => Some(format!(
            "see to the cable and the switch: `ibstat {}`",
            device.name
        )),
        ("Ethernet", "ACTIVE") => {
            Some(format!("`sudo ip address add ADDRESS/PREFIX dev {netdev}`"))
        }
        ("Ethernet", _) => Some(format!(
            "`sudo ip link set dev {netdev} up`; if it stays down, see to the cable: `rdma link show {}/{}`",
            device.name, port.number
        )),
        _ => None,
    }
}

fn memlock(name: &str, facts: &HostFacts) -> Option<Finding> {
    let memlock = &facts.memlock;
    let limit = memlock.limit.filter(|_| !memlock.is_privileged)?;
    if facts.devices.is_empty() || limit >= memlock.needed {
        return None;
    }
    let is_too_small = limit < memlock.least;
    let what = if is_too_small {
        format!(
            "this user may pin {} of memory, and a stream over RDMA needs at least {}",
            memory(limit),
            memory(memlock.least)
        )
    } else {
        format!(
            "this user may pin {} of memory, and a stream over RDMA takes {}: it uses smaller buffers",
            memory(limit),
            memory(memlock.needed)
        )
    };
    let finding = Finding::note("memlock", name, what).with(RAISE_MEMLOCK);
    Some(finding.serious_if(is_too_small))
}

/// Returns the reason why the host cannot use RDMA, if nothing else that was found is a reason.
fn unexplained(name: &str, facts: &HostFacts, known: &[Finding]) -> Option<Finding> {
    let reason = facts.no_rdma.as_ref()?;
    let is_known = known
        .iter()
        .any(|finding| finding.severity == super::Severity::Repair || finding.code == "no-rdma");
    let has_usable = facts.devices.iter().any(is_usable);
    if is_known || !has_usable {
        return None;
    }
    let finding = Finding::repair("rdma-choice", name, reason);
    let remedy =
        "see `rdma link show`, and the options --device, --ib-port, --gid-index and --pkey-index";
    Some(finding.with(remedy))
}

fn governor(name: &str, facts: &HostFacts) -> Option<Finding> {
    let governor = facts.governor.as_ref();
    let governor = governor.filter(|governor| *governor != "performance")?;
    let what = format!("the governor of the processors is {governor}: latencies vary");
    let finding = Finding::note("governor", name, what);
    Some(finding.with("`sudo cpupower frequency-set -g performance`"))
}

fn clock_source(name: &str, facts: &HostFacts) -> Option<Finding> {
    let source = facts.clock_source.as_ref();
    let source = source.filter(|source| SLOW_CLOCKS.contains(&source.as_str()))?;
    let what = format!("the clock of the kernel is {source}, which is slow to read");
    let finding = Finding::note("clock-source", name, what);
    Some(finding.with(
        "`echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource`",
    ))
}
