//! What is wrong with one host. Pure, no I/O.

use super::{Finding, RAISE_MEMLOCK, device_rights, memory, soft_roce};
use crate::{
    perf::messages::{DeviceFacts, HostFacts, PortFacts},
    ssh::quote::word,
};

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
    let finding = finding.with("build it with RDMA: `scripts/install`");
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
    let netdev = word(port.netdev.as_deref().unwrap_or("INTERFACE"));
    let device_name = word(&device.name);
    match (port.link_layer.as_str(), port.state.as_str()) {
        ("InfiniBand", "INIT") => {
            Some("start a subnet manager on one host of the fabric: `sudo opensm -B`".to_owned())
        }
        ("InfiniBand", "DOWN") => Some(format!(
            "see to the cable and the switch: `ibstat {device_name}`"
        )),
        ("Ethernet", "ACTIVE") => {
            Some(format!("`sudo ip address add ADDRESS/PREFIX dev {netdev}`"))
        }
        ("Ethernet", _) => Some(format!(
            "`sudo ip link set dev {netdev} up`; if it stays down, see to the cable: `rdma link show {device_name}/{}`",
            port.number
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{
        check::{
            Severity,
            tests::{
                assert_found, assert_one, device, host, host_without_devices, port, with_code,
            },
        },
        messages::{HostFacts, PortFacts},
    };

    fn check(facts: &HostFacts) -> Vec<Finding> {
        check_host("fs1", facts, false)
    }

    #[test]
    fn nothing_is_wrong_with_a_good_host() {
        assert_eq!(check(&host(1)), []);
        assert_eq!(check_host("fs1", &host(1), true), []);
    }

    #[test]
    fn too_little_memory_may_be_pinned() {
        let mut facts = host(1);
        facts.memlock.limit = Some(64 << 10);
        facts.no_rdma = Some("cannot pin 148 KiB".to_owned());
        let findings = check(&facts);
        assert_one(
            &findings,
            "memlock",
            Severity::Repair,
            "ulimit -l unlimited",
        );
        assert_found(
            &findings,
            "memlock",
            Severity::Repair,
            "/etc/security/limits.d",
        );
        assert_found(
            &findings,
            "memlock",
            Severity::Repair,
            "LimitMEMLOCK=infinity",
        );
        let what =
            "this user may pin 64 KiB of memory, and a stream over RDMA needs at least 148 KiB";
        assert_eq!(findings[0].what, what);
        assert_eq!(findings[0].subject, "fs1");
        facts.memlock.is_privileged = true;
        facts.no_rdma = None;
        assert_eq!(check(&facts), []);
    }

    #[test]
    fn a_stream_with_smaller_buffers_is_a_note() {
        let mut facts = host(1);
        facts.memlock.limit = Some(8 << 20);
        assert_one(
            &check(&facts),
            "memlock",
            Severity::Note,
            "ulimit -l unlimited",
        );
        facts.devices.clear();
        let findings = check(&facts);
        assert!(findings.iter().all(|finding| finding.code != "memlock"));
    }

    #[test]
    fn a_device_without_rights_is_found() {
        let mut facts = host(1);
        let file = "/dev/infiniband/uverbs0";
        facts.devices[0].forbidden_file = Some(file.to_owned());
        facts.devices[0].fault = Some(format!("may not be used: no rights on {file}"));
        facts.no_rdma = Some("mlx5_0 may not be used".to_owned());
        let findings = check(&facts);
        let remedy = "sudo chmod 666 /dev/infiniband/uverbs0";
        assert_one(&findings, "device-rights", Severity::Repair, remedy);
        assert_found(
            &findings,
            "device-rights",
            Severity::Repair,
            "usermod -aG rdma",
        );
    }

    #[test]
    fn a_device_that_programs_cannot_open_is_found() {
        let faulty = |fault: &str| {
            let mut facts = host(1);
            facts.devices[0].fault = Some(fault.to_owned());
            facts.no_rdma = Some(fault.to_owned());
            check(&facts)
        };
        let findings = faulty("is closed to programs (load the kernel module ib_uverbs)");
        assert_one(&findings, "device", Severity::Repair, "modprobe ib_uverbs");
        let findings = faulty("has no /dev/infiniband/uverbs0 (in a container, pass it in)");
        assert_one(
            &findings,
            "device",
            Severity::Repair,
            "--device /dev/infiniband",
        );
        let findings = faulty("is iWARP, which rdpipe does not use");
        assert_one(&findings, "device", Severity::Note, "");
    }

    fn down() -> PortFacts {
        PortFacts {
            number: 2,
            state: "DOWN".to_owned(),
            fault: Some("is DOWN (see to the cable)".to_owned()),
            netdev: Some("eth2".to_owned()),
            ..port(1)
        }
    }

    #[test]
    fn a_port_that_is_down_is_a_note_if_another_one_can_be_used() {
        let mut facts = host(1);
        facts.devices[0].ports.push(down());
        let remedy = "sudo ip link set dev eth2 up";
        assert_one(&check(&facts), "port-down", Severity::Note, remedy);
        facts.devices[0].ports.remove(0);
        facts.no_rdma = Some("device mlx5_0 port 2 is DOWN".to_owned());
        assert_one(&check(&facts), "port-down", Severity::Repair, remedy);
    }

    /// A host says what its interfaces are called, and a user pastes the remedy into a shell.
    #[test]
    fn what_a_host_says_is_one_word_of_a_command() {
        let mut facts = host(1);
        let port = PortFacts {
            netdev: Some("eth2; reboot".to_owned()),
            ..down()
        };
        facts.devices[0].ports.push(port);
        let remedy = "sudo ip link set dev 'eth2; reboot' up";
        assert_one(&check(&facts), "port-down", Severity::Note, remedy);
    }

    #[test]
    fn each_state_of_a_port_has_a_remedy() {
        let with = |change: &dyn Fn(&mut PortFacts)| {
            let mut facts = host(1);
            let mut port = down();
            change(&mut port);
            facts.devices[0].ports = vec![port];
            check(&facts)
        };
        let findings = with(&|port| {
            port.link_layer = "InfiniBand".to_owned();
            port.state = "INIT".to_owned();
        });
        assert_one(&findings, "port-down", Severity::Repair, "opensm");
        let findings = with(&|port| port.link_layer = "InfiniBand".to_owned());
        assert_one(&findings, "port-down", Severity::Repair, "ibstat mlx5_0");
        let findings = with(&|port| {
            port.state = "ACTIVE".to_owned();
            port.fault = Some("has no address".to_owned());
        });
        assert_one(&findings, "port", Severity::Repair, "sudo ip address add");
        let findings = with(&|port| port.netdev = None);
        assert_one(&findings, "port-down", Severity::Repair, "dev INTERFACE up");
    }

    #[test]
    fn a_host_without_rdma_is_a_note_unless_the_user_insists() {
        let facts = host_without_devices(1);
        let remedy = "rdma link add rxe0 type rxe netdev eth0";
        assert_one(&check(&facts), "no-rdma", Severity::Note, remedy);
        let findings = check_host("fs1", &facts, true);
        assert_one(&findings, "no-rdma", Severity::Repair, remedy);
    }

    #[test]
    fn a_build_without_rdma_is_a_note_unless_there_is_hardware() {
        let mut facts = host_without_devices(1);
        facts.has_rdma_build = false;
        let remedy = "scripts/install";
        assert_one(&check(&facts), "no-rdma-build", Severity::Note, remedy);
        let findings = check_host("fs1", &facts, true);
        assert_one(&findings, "no-rdma-build", Severity::Repair, remedy);
        facts.devices.push(device(1));
        let findings = check(&facts);
        assert_one(&findings, "no-rdma-build", Severity::Repair, remedy);
        assert!(findings[0].what.contains("mlx5_0"));
    }

    #[test]
    fn a_named_device_that_is_not_there_is_found() {
        let mut facts = host(1);
        let reason = "there is no RDMA device mlx5_9; there is: mlx5_0 port 1";
        facts.no_rdma = Some(reason.to_owned());
        let findings = check(&facts);
        assert_one(&findings, "rdma-choice", Severity::Repair, "--device");
        assert_eq!(findings[0].what, reason);
    }

    #[test]
    fn a_governor_and_a_clock_that_vary_are_notes() {
        let mut facts = host(1);
        facts.governor = Some("powersave".to_owned());
        facts.clock_source = Some("hpet".to_owned());
        let findings = check(&facts);
        let remedy = "cpupower frequency-set -g performance";
        assert_found(&findings, "governor", Severity::Note, remedy);
        assert_found(&findings, "clock-source", Severity::Note, "echo tsc");
        for clock in ["kvm-clock", "arch_sys_counter"] {
            facts.clock_source = Some(clock.to_owned());
            assert_eq!(check(&facts).len(), 1);
        }
        (facts.governor, facts.clock_source) = (None, None);
        assert_eq!(check(&facts), []);
    }

    #[test]
    fn the_worst_finding_comes_first_and_other_programs_can_read_it() {
        let mut facts = host(1);
        facts.governor = Some("powersave".to_owned());
        facts.memlock.limit = Some(64 << 10);
        let findings = check(&facts);
        assert_eq!(findings[0].code, "memlock");
        let json = serde_json::to_value(with_code(&findings, "governor")).unwrap();
        assert_eq!(json["severity"], "note");
        assert_eq!(json["subject"], "fs1");
        assert_eq!(json["code"], "governor");
    }
}
