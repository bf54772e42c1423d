//! What is wrong with one host.

use super::{
    super::{Finding, Severity, check_host},
    assert_found, assert_one,
    facts::{device, host, host_without_devices, port},
    with_code,
};
use crate::perf::messages::{HostFacts, PortFacts};

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
    let what = "this user may pin 64 KiB of memory, and a stream over RDMA needs at least 148 KiB";
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
    let remedy = "cargo install --locked --path .";
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
