//! Findings about hosts and pairs that are built of facts: those of hosts on which nothing is wrong, and what each test
//! changes of them; and facts of any content, because an agent sends whatever its host says.

use proptest::prelude::*;

use super::*;
use crate::{
    perf::messages::{
        AddressFacts, DeviceFacts, HostFacts, MemlockFacts, PathResult, PortFacts, PortPairProof,
        ProbedSize, TaskFault, VerbsPort,
    },
    ssh::protocol::AgentHello,
};

pub(super) fn with_code<'a>(findings: &'a [Finding], code: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.code == code);
    found.unwrap_or_else(|| panic!("no {code} in {findings:#?}"))
}

/// Fails unless there is one finding, which has this code and this severity, and whose remedy contains the text.
#[track_caller]
pub(super) fn assert_one(findings: &[Finding], code: &str, severity: Severity, remedy: &str) {
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_found(findings, code, severity, remedy);
}

/// Fails unless there is a finding with this code and this severity, and whose remedy contains the text.
#[track_caller]
pub(super) fn assert_found(findings: &[Finding], code: &str, severity: Severity, remedy: &str) {
    let finding = with_code(findings, code);
    assert_eq!(finding.severity, severity, "{finding:#?}");
    let text = finding.remedy.as_deref().unwrap_or_default();
    assert!(text.contains(remedy), "{finding:#?}");
}

/// A host with RDMA on which nothing is wrong.
pub(crate) fn host(number: u8) -> HostFacts {
    HostFacts {
        hello: AgentHello {
            host: format!("fs{number}"),
            machine: format!("machine {number}"),
            addresses: vec![[10, 0, 0, number].into()],
            streams: 4,
            most_streams: None,
        },
        version: "0.1.0".to_owned(),
        has_rdma_build: true,
        kernel: "6.1.0".to_owned(),
        processor: "A processor".to_owned(),
        processors: 8,
        ciphers: Vec::new(),
        governor: Some("performance".to_owned()),
        clock_source: Some("tsc".to_owned()),
        clock_ms: 1_700_000_000_000,
        memlock: MemlockFacts {
            limit: None,
            needed: 13_000_000,
            least: 151_552,
            is_privileged: false,
        },
        devices: vec![device(number)],
        no_rdma: None,
        addresses: vec![AddressFacts {
            netdev: "eth0".to_owned(),
            address: [10, 0, 0, number].into(),
            mtu: 1500,
            rate_mbps: Some(1000),
        }],
    }
}

/// A host without an RDMA device.
pub(super) fn host_without_devices(number: u8) -> HostFacts {
    HostFacts {
        devices: Vec::new(),
        no_rdma: Some("no RDMA device".to_owned()),
        ..host(number)
    }
}

/// A card with one port.
pub(super) fn device(number: u8) -> DeviceFacts {
    DeviceFacts {
        name: "mlx5_0".to_owned(),
        is_software: false,
        fault: None,
        forbidden_file: None,
        firmware: Some("16.35.2000".to_owned()),
        ports: vec![port(number)],
    }
}

/// A RoCE port.
pub(super) fn port(number: u8) -> PortFacts {
    PortFacts {
        number: 1,
        state: "ACTIVE".to_owned(),
        link_layer: "Ethernet".to_owned(),
        rate_mbps: 100_000,
        fault: None,
        netdev: Some("eth1".to_owned()),
        gids: vec![format!(
            "GID 3 (RoCE v2, 10.1.0.{number} on eth1), MTU 4096"
        )],
    }
}

/// A path through an interface, over which packets of at most `largest` bytes arrive.
pub(super) fn path(netdev: &str, mtu: u32, largest: u32) -> PathResult {
    let sizes = [576, 1500, 4192, 9000];
    let sizes = sizes.into_iter().chain([largest]);
    let mut sizes: Vec<u32> = sizes.filter(|size| (1..=mtu).contains(size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let probe = |bytes| ProbedSize {
        bytes,
        sent: 4,
        arrived: if bytes <= largest { 4 } else { 0 },
    };
    PathResult {
        mtu: Some(mtu),
        netdev: Some(netdev.to_owned()),
        probes: sizes.into_iter().map(probe).collect(),
    }
}

/// A pair of RoCE ports over which all messages travel.
pub(super) fn proof() -> PortPairProof {
    let port = || VerbsPort {
        device: "mlx5_0".to_owned(),
        port: 1,
        gid_index: 3,
    };
    let text = |number| format!("mlx5_0 port 1, GID 3 (RoCE v2, 10.1.0.{number} on eth1)");
    PortPairProof {
        dialer: port(),
        dialer_text: text(1),
        listener: port(),
        listener_text: text(2),
        shares_network: true,
        is_roce_v2: true,
        mtu: 4096,
        limits: None,
        short: Ok(5_000),
        long: Ok(20_000),
    }
}

#[test]
fn amounts_have_few_digits() {
    assert_eq!(memory(64 << 10), "64 KiB");
    assert_eq!(memory(150_000), "147 KiB");
    assert_eq!(memory(8 << 20), "8 MiB");
    assert_eq!(memory(13_000_000), "12.4 MiB");
    assert_eq!(rate(1.1e9), "1.1 GB/s");
    assert_eq!(rate(250.4e6), "250 MB/s");
    assert_eq!(rate(12.0), "12 B/s");
    assert_eq!(rate(0.0), "0 B/s");
    assert_eq!(share(0.97), "97%");
    assert_eq!(share(0.003), "0.3%");
}

/// Two hosts, and changes of what is known about them.
struct PairCase {
    hosts: [HostFacts; 2],
}

impl PairCase {
    fn new() -> Self {
        Self {
            hosts: [host(1), host(2)],
        }
    }

    /// What is known about two hosts between which nothing was tried.
    fn facts(&self) -> PairFacts<'_> {
        PairFacts {
            dialer: PairEnd {
                name: "fs1",
                facts: &self.hosts[0],
            },
            listener: PairEnd {
                name: "fs2",
                facts: &self.hosts[1],
            },
            reached: None,
            reached_back: None,
            path: None,
            path_back: None,
            proofs: None,
            ports: None,
            clock_difference_ms: None,
            may_go_through_ssh: true,
        }
    }
}

fn check(facts: &PairFacts<'_>) -> Vec<Finding> {
    check_pair(facts, false)
}

fn fault(text: &str, is_unreachable: bool) -> TaskFault {
    TaskFault {
        is_unreachable,
        text: text.to_owned(),
    }
}

/// Checks two hosts of which these pairs of ports were tried.
fn proved(proofs: &[PortPairProof]) -> Vec<Finding> {
    let case = PairCase::new();
    check(&PairFacts {
        proofs: Some(Ok(proofs)),
        ..case.facts()
    })
}

#[test]
fn nothing_is_wrong_with_a_good_pair() {
    let case = PairCase::new();
    let (there, back) = (path("eth0", 1500, 1500), path("eth0", 9000, 9000));
    let proofs = [proof()];
    let facts = PairFacts {
        reached: Some(Ok("10.0.0.2:7691")),
        reached_back: Some(Ok("10.0.0.1:7691")),
        path: Some(&there),
        path_back: Some(&back),
        proofs: Some(Ok(&proofs)),
        clock_difference_ms: Some(-1500),
        may_go_through_ssh: true,
        ..case.facts()
    };
    assert_eq!(check_pair(&facts, true), []);
    assert_eq!(check(&case.facts()), []);
}

#[test]
fn different_versions_are_found() {
    let mut case = PairCase::new();
    case.hosts[1].version = "0.2.0".to_owned();
    let findings = check(&case.facts());
    assert_one(
        &findings,
        "version",
        Severity::Repair,
        "same version on both",
    );
    assert_eq!(findings[0].what, "fs1 has rdpipe 0.1.0, and fs2 has 0.2.0");
    assert_eq!(findings[0].subject, "fs1 to fs2");
}

#[test]
fn a_firewall_against_tcp_is_found_in_the_direction_that_it_blocks() {
    let case = PairCase::new();
    let blocked = fault("10.0.0.1: no answer within 2s", true);
    let facts = PairFacts {
        reached: Some(Ok("10.0.0.2:40000")),
        reached_back: Some(Err(&blocked)),
        ..case.facts()
    };
    let findings = check(&facts);
    assert_one(
        &findings,
        "firewall-tcp",
        Severity::Repair,
        "on fs1: `sudo firewall-cmd",
    );
    assert_one(
        &findings,
        "firewall-tcp",
        Severity::Repair,
        "tcp dport 7691-7699 accept",
    );
    assert_one(
        &findings,
        "firewall-tcp",
        Severity::Repair,
        "then use -p 7691-7699",
    );
    assert_eq!(findings[0].subject, "fs2 to fs1");
    assert!(
        findings[0]
            .what
            .ends_with("connections from fs1 to fs2 work")
    );
    let facts = PairFacts {
        reached: Some(Err(&blocked)),
        ports: Some((7000, 7000)),
        ..facts
    };
    let findings = check(&facts);
    assert_eq!(findings.len(), 2);
    let remedy = findings[0].remedy.as_deref().unwrap();
    assert!(
        remedy.contains("on fs2: `sudo firewall-cmd --add-port=7000/tcp`"),
        "{remedy}"
    );
    assert!(!remedy.contains("use -p"), "{remedy}");
    assert!(
        findings[0]
            .what
            .contains("nor does the other direction work, so rdpipe")
    );
}

#[test]
fn another_failure_of_tcp_is_told_as_it_is() {
    let case = PairCase::new();
    let strange = fault("the keys do not match", false);
    let facts = PairFacts {
        reached: Some(Err(&strange)),
        ..case.facts()
    };
    assert_one(&check(&facts), "reach", Severity::Repair, "");
}

#[test]
fn an_mtu_that_does_not_match_the_path_is_found_with_the_right_one() {
    let case = PairCase::new();
    let (there, back) = (path("eth0", 9000, 1472), path("ens3", 9000, 1472));
    let facts = PairFacts {
        path: Some(&there),
        path_back: Some(&back),
        ..case.facts()
    };
    let findings = check(&facts);
    let remedy = "on fs1: `sudo ip link set dev eth0 mtu 1472`, and on fs2: `sudo ip link set dev ens3 mtu 1472`";
    assert_one(&findings, "mtu-path", Severity::Repair, remedy);
    assert!(findings[0].what.contains("more than 1472 bytes"));
    // One direction is enough. A host whose MTU is right is not in the remedy.
    let back = path("ens3", 1472, 1472);
    let facts = PairFacts {
        path: Some(&there),
        path_back: Some(&back),
        ..case.facts()
    };
    let remedy = "on fs1: `sudo ip link set dev eth0 mtu 1472`; or set the switches";
    assert_one(&check(&facts), "mtu-path", Severity::Repair, remedy);
    // The interface of the other end takes 4 bytes more than its MTU: the tag of a VLAN.
    let back = path("ens3", 1468, 1468);
    let facts = PairFacts {
        path: Some(&there),
        path_back: Some(&back),
        ..case.facts()
    };
    let remedy = "on fs1: `sudo ip link set dev eth0 mtu 1468`; or set the switches";
    assert_one(&check(&facts), "mtu-path", Severity::Repair, remedy);
}

#[test]
fn a_loopback_interface_has_an_mtu_that_no_packet_has() {
    let case = PairCase::new();
    let there = path("lo", 65_536, 9000);
    let unknown = PathResult {
        mtu: None,
        ..path("lo", 9000, 1500)
    };
    // Nothing larger was tried, or nothing is known.
    for path in [&there, &unknown] {
        let facts = PairFacts {
            path: Some(path),
            ..case.facts()
        };
        assert_eq!(check(&facts), []);
    }
}

#[test]
fn a_path_that_drops_udp_is_a_note() {
    let case = PairCase::new();
    let there = path("eth0", 1500, 0);
    let facts = PairFacts {
        path: Some(&there),
        path_back: Some(&there),
        ..case.facts()
    };
    assert_one(&check(&facts), "path-unknown", Severity::Note, "");
}

#[test]
fn clocks_that_differ_are_a_note() {
    let case = PairCase::new();
    let facts = |difference| PairFacts {
        clock_difference_ms: Some(difference),
        may_go_through_ssh: true,
        ..case.facts()
    };
    let findings = check(&facts(-125_000));
    assert_one(
        &findings,
        "clock",
        Severity::Note,
        "timedatectl set-ntp true",
    );
    assert_eq!(
        findings[0].what,
        "the clock of fs1 is 125 s ahead of that of fs2"
    );
    assert!(
        check(&facts(125_000))[0]
            .what
            .starts_with("the clock of fs2")
    );
    assert_eq!(check(&facts(60_000)), []);
    assert_eq!(check(&facts(i64::MIN)).len(), 1);
}

#[test]
fn short_messages_that_arrive_and_long_ones_that_do_not_are_an_mtu() {
    let broken = PortPairProof {
        long: Err("nothing arrived within 1.5 s".to_owned()),
        ..proof()
    };
    let findings = proved(std::slice::from_ref(&broken));
    let remedy = "on fs1: `sudo ip link set dev eth1 mtu 1500`, and on fs2: `sudo ip link set dev eth1 mtu 1500`";
    assert_one(&findings, "mtu-path", Severity::Repair, remedy);
    assert_one(
        &findings,
        "mtu-path",
        Severity::Repair,
        "MTU of 4160 or more",
    );
    // The path of the same interface was measured.
    let case = PairCase::new();
    let there = path("eth1", 9000, 2000);
    let proofs = [broken.clone()];
    let facts = PairFacts {
        path: Some(&there),
        proofs: Some(Ok(&proofs)),
        ..case.facts()
    };
    let findings = check(&facts);
    assert!(findings.iter().all(|finding| {
        let remedy = finding.remedy.as_deref().unwrap();
        finding.code == "mtu-path" && remedy.contains("dev eth1 mtu 2000")
    }));
    let infiniband = PortPairProof {
        dialer_text: "mlx5_0 port 1, GID 0 (InfiniBand, fe80::1)".to_owned(),
        is_roce_v2: false,
        ..broken
    };
    let findings = proved(&[infiniband]);
    assert_one(&findings, "mtu-path", Severity::Repair, "subnet manager");
}

fn silent() -> PortPairProof {
    PortPairProof {
        short: Err("nothing arrived within 1.5 s".to_owned()),
        long: Err("not tried".to_owned()),
        ..proof()
    }
}

#[test]
fn ports_of_one_network_over_which_nothing_travels_are_a_firewall() {
    let findings = proved(&[silent()]);
    let remedy = "on fs1 and fs2: `sudo firewall-cmd --add-port=4791/udp`";
    assert_one(&findings, "firewall-udp", Severity::Repair, remedy);
    let remedy = "sudo nft insert rule inet filter input udp dport 4791 accept";
    assert_one(&findings, "firewall-udp", Severity::Repair, remedy);
    let infiniband = PortPairProof {
        is_roce_v2: false,
        ..silent()
    };
    assert_one(
        &proved(&[infiniband]),
        "rdma-proof",
        Severity::Repair,
        "ibping",
    );
}

#[test]
fn a_second_pair_of_ports_that_does_not_work_is_a_note() {
    let findings = proved(&[proof(), silent(), silent()]);
    assert_one(&findings, "firewall-udp", Severity::Note, "4791/udp");
}

fn apart() -> PortPairProof {
    PortPairProof {
        listener_text: "mlx5_0 port 1, GID 3 (RoCE v2, 10.9.0.2 on eth7)".to_owned(),
        shares_network: false,
        ..silent()
    }
}

#[test]
fn networks_that_differ_are_found_and_routed_ones_are_not() {
    let findings = proved(&[apart()]);
    assert_one(
        &findings,
        "roce-network",
        Severity::Repair,
        "sudo ip address add ADDRESS/PREFIX dev eth7",
    );
    assert!(findings[0].what.contains("10.1.0.1 on eth1) on fs1, and"));
    let findings = proved(&[]);
    assert_one(&findings, "roce-network", Severity::Repair, "dev eth1");
    let routed = PortPairProof {
        shares_network: false,
        ..proof()
    };
    assert_eq!(proved(&[routed, apart()]), []);
}

#[test]
fn a_host_without_rdma_has_no_ports_to_prove() {
    let mut case = PairCase::new();
    let fault = fault("no port", false);
    case.hosts[1] = host_without_devices(2);
    let facts = PairFacts {
        proofs: Some(Err(&fault)),
        ..case.facts()
    };
    assert_eq!(check(&facts), []);
    let case = PairCase::new();
    let facts = PairFacts {
        proofs: Some(Err(&fault)),
        ..case.facts()
    };
    assert_one(&check(&facts), "rdma-proof", Severity::Repair, "");
}

#[test]
fn auto_chooses_rdma_where_a_message_crosses_it_and_says_why_not() {
    let mut case = PairCase::new();
    let choice = |case: &PairCase, proofs: &[PortPairProof]| {
        automatic_choice(&PairFacts {
            proofs: Some(Ok(proofs)),
            ..case.facts()
        })
    };
    let (is_rdma, why) = choice(&case, &[silent(), proof()]);
    assert!(is_rdma);
    assert!(
        why.starts_with("mlx5_0 port 1, GID 3") && why.ends_with("MTU 4096"),
        "{why}"
    );
    let (is_rdma, why) = choice(&case, &[silent()]);
    assert!(
        !is_rdma && why.ends_with("nothing arrived within 1.5 s"),
        "{why}"
    );
    let (is_rdma, why) = choice(&case, &[]);
    assert_eq!(
        (is_rdma, why.as_str()),
        (false, "the hosts' RDMA networks differ")
    );
    assert!(automatic_choice(&case.facts()).0);
    case.hosts[1] = host_without_devices(2);
    let (is_rdma, why) = choice(&case, &[proof()]);
    assert_eq!((is_rdma, why.as_str()), (false, "fs2: no RDMA device"));
    case.hosts[0].has_rdma_build = false;
    let (_, why) = choice(&case, &[]);
    assert_eq!(why, "fs1: this rdpipe was built without RDMA");
    case = PairCase::new();
    let fault = fault("no port", false);
    let facts = PairFacts {
        proofs: Some(Err(&fault)),
        ..case.facts()
    };
    assert_eq!(automatic_choice(&facts), (false, "no port".to_owned()));
}

fn word() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "",
        "ACTIVE",
        "DOWN",
        "INIT",
        "InfiniBand",
        "Ethernet",
        "eth0",
        " on ",
        " on )",
        "ib_uverbs",
        "hpet",
        "powersave",
        "/dev/infiniband/uverbs0",
    ])
    .prop_map(str::to_owned)
}

fn maybe() -> impl Strategy<Value = Option<String>> {
    prop::option::of(word())
}

fn port_facts() -> impl Strategy<Value = PortFacts> {
    (
        any::<u8>(),
        word(),
        word(),
        maybe(),
        maybe(),
        prop::collection::vec(word(), 0..2),
    )
        .prop_map(
            |(number, state, link_layer, fault, netdev, gids)| PortFacts {
                number,
                state,
                link_layer,
                rate_mbps: 0,
                fault,
                netdev,
                gids,
            },
        )
}

fn device_facts() -> impl Strategy<Value = DeviceFacts> {
    (
        word(),
        any::<bool>(),
        maybe(),
        maybe(),
        prop::collection::vec(port_facts(), 0..3),
    )
        .prop_map(
            |(name, is_software, fault, forbidden_file, ports)| DeviceFacts {
                name,
                is_software,
                fault,
                forbidden_file,
                firmware: None,
                ports,
            },
        )
}

fn host_facts() -> impl Strategy<Value = HostFacts> {
    let memlock = (
        prop::option::of(any::<u64>()),
        any::<u64>(),
        any::<u64>(),
        any::<bool>(),
    );
    let devices = prop::collection::vec(device_facts(), 0..3);
    (any::<bool>(), maybe(), maybe(), maybe(), memlock, devices).prop_map(
        |(has_rdma_build, no_rdma, governor, clock_source, memlock, devices)| HostFacts {
            has_rdma_build,
            no_rdma,
            governor,
            clock_source,
            memlock: MemlockFacts {
                limit: memlock.0,
                needed: memlock.1,
                least: memlock.2,
                is_privileged: memlock.3,
            },
            devices,
            addresses: Vec::new(),
            ..host(1)
        },
    )
}

fn port_proof() -> impl Strategy<Value = PortPairProof> {
    let result = || prop_oneof![Just(Ok(1)), Just(Err("silent".to_owned()))];
    (
        word(),
        word(),
        any::<bool>(),
        any::<bool>(),
        any::<u16>(),
        result(),
        result(),
    )
        .prop_map(
            |(dialer_text, listener_text, shares_network, is_roce_v2, mtu, short, long)| {
                PortPairProof {
                    dialer_text,
                    listener_text,
                    shares_network,
                    is_roce_v2,
                    mtu,
                    short,
                    long,
                    ..proof()
                }
            },
        )
}

proptest! {
    #[test]
    fn any_facts_can_be_checked(
        hosts in (host_facts(), host_facts()),
        proofs in prop::collection::vec(port_proof(), 0..4),
        paths in ((any::<u32>(), any::<u32>()), (any::<u32>(), any::<u32>())),
        clock_difference_ms in prop::option::of(any::<i64>()),
        insists: bool,
    ) {
        let there = path("eth0", paths.0.0, paths.0.1);
        let back = path("eth0", paths.1.0, paths.1.1);
        let pair = PairFacts {
            dialer: PairEnd { name: "fs1", facts: &hosts.0 },
            listener: PairEnd { name: "fs2", facts: &hosts.1 },
            reached: Some(Ok("10.0.0.2:1")),
            reached_back: None,
            path: Some(&there),
            path_back: Some(&back),
            proofs: Some(Ok(&proofs)),
            ports: Some((0, u16::MAX)),
            clock_difference_ms,
            may_go_through_ssh: true,
        };
        let mut findings = check_pair(&pair, insists);
        findings.extend(check_host("fs1", &hosts.0, insists));
        let _ = automatic_choice(&pair);
        for finding in findings {
            prop_assert!(!finding.what.ends_with('.'));
        }
    }
}
