//! RDMA that is missing or does not work: `--transport auto` uses TCP and prints the reason, `--transport rdma` fails
//! and prints a remedy. One test has a device of which only one port pair works.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    support::programs::{End, Link, Sight, eventually, ip, key, limit, random_bytes},
    turn,
};

/// The most time that an attempt at RDMA may add to a run, as docs/rdma.md says.
const MORE: Duration = Duration::from_secs(2);

const BYTES: usize = 300_000;

/// Both ends see all devices.
const ALL: [Sight; 2] = [Sight::All; 2];

/// Each end sees another device, and the devices cannot reach each other: between two addresses of the same machine,
/// rxe sends through lo, where no device listens.
const APART: [Sight; 2] = [Sight::Only("rxe0"), Sight::Only("rxe1")];

/// A defect of the machine: the devices that receiver and sender see, and the messages that they must print.
struct Absence {
    sights: [Sight; 2],
    why: &'static str,
    remedy: &'static str,
    said: Said,
}

/// The ends that must print with `--transport auto` why the data goes over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// Neither end, because neither has a device.
    Nothing,
    /// Only the receiver, because only the receiver has a device.
    ByOne,
    ByBoth,
}

#[test]
fn no_device_means_tcp_or_an_error() {
    let Some(_turn) = turn() else { return };
    Absence {
        sights: [Sight::Nothing; 2],
        why: "no RDMA device",
        remedy: "use --transport auto to use TCP",
        said: Said::Nothing,
    }
    .is_tcp_or_an_error();
}

#[test]
fn no_device_at_one_end_means_tcp_or_an_error() {
    let Some(_turn) = turn() else { return };
    let absence = Absence {
        sights: [Sight::All, Sight::Nothing],
        why: "no RDMA device",
        remedy: "use --transport auto to use TCP",
        said: Said::ByOne,
    };
    absence.is_tcp_or_an_error();
    // The end with a device requires RDMA: the error appears at both ends.
    let ends = run(absence.sights, ["--transport rdma", "--transport auto"]).ends;
    for end in ends {
        let host = host();
        let text = format!("no RDMA, and one end does not allow TCP: {host}: no RDMA");
        end.fails(255, &[&text]);
    }
}

#[test]
fn a_device_without_permission_means_tcp_or_an_error() {
    let Some(_turn) = turn() else { return };
    Absence {
        sights: [Sight::Forbidden; 2],
        why: "rxe0 may not be used: no rights on /dev/infiniband/uverbs",
        remedy: "`chmod 666` it, or give it mode 660 and a group of this user's",
        said: Said::ByBoth,
    }
    .is_tcp_or_an_error();
}

#[test]
fn a_host_without_libibverbs_means_tcp_or_an_error() {
    let Some(_turn) = turn() else { return };
    Absence {
        sights: [Sight::NoLibrary; 2],
        why: "libibverbs.so.1",
        remedy: "install libibverbs1",
        said: Said::ByBoth,
    }
    .is_tcp_or_an_error();
}

#[test]
fn devices_that_are_down_mean_tcp_or_an_error() {
    let Some(_turn) = turn() else { return };
    let _down = [Link::down("d0"), Link::down("d1")];
    Absence {
        sights: ALL,
        why: "device rxe0 port 1 is DOWN",
        remedy: "set its network interface up",
        said: Said::ByBoth,
    }
    .is_tcp_or_an_error();
}

#[test]
fn separate_networks_mean_tcp_or_an_error() {
    let Some(_turn) = turn() else { return };
    Absence {
        sights: APART,
        why: "networks differ (10.99.0.0/24 here, 10.98.0.0/24 there)",
        remedy: "put a port of each into one",
        said: Said::ByBoth,
    }
    .is_tcp_or_an_error();
}

#[test]
fn a_device_that_never_delivers_means_tcp_or_an_error() {
    let Some(_turn) = turn() else { return };
    let _near = Near::new();
    let tcp = over_tcp(APART);
    let auto = Absence {
        sights: APART,
        why: "nothing crossed the queue pair within 1.",
        remedy: "RoCE v2 is UDP, port 4791: see that nothing on the way drops it",
        said: Said::ByBoth,
    }
    .is_tcp_or_an_error();
    costs_little(auto, tcp);
}

#[test]
fn the_next_pair_of_ports_is_used_if_the_best_never_delivers() {
    let Some(_turn) = turn() else { return };
    let _near = Near::new();
    // From its attributes alone, the first device of the receiver is as good as its second one.
    let sights = [Sight::All, Sight::Only("rxe1")];
    let tcp = over_tcp(sights);
    let rdma = run(sights, ["--transport rdma -v"; 2]);
    println!("{:?}", rdma.said());
    let tried = "; first tried: ";
    for (end, device) in rdma.ends.iter().zip(["rxe0", "rxe1"]) {
        let text = end.exits(0);
        assert!(text.contains(" over RDMA (rxe1 port 1"), "{text}");
        let before = text.split_once(tried).map(|(_, before)| before);
        let wrong = format!("{}: {device} port 1", host());
        assert!(
            before.is_some_and(|before| before.starts_with(&wrong)),
            "{text}"
        );
    }
    assert!(rdma.ends[0].stdout == random_bytes(BYTES), "other bytes");
    costs_little(rdma.took, tcp);
}

/// Returns the time of a run over TCP, after another one, which has loaded the programs from disk.
fn over_tcp(sights: [Sight; 2]) -> Duration {
    drop(run(sights, ["--transport tcp"; 2]));
    run(sights, ["--transport tcp"; 2]).took
}

#[track_caller]
fn costs_little(took: Duration, tcp: Duration) {
    let more = took.saturating_sub(tcp);
    assert!(more < limit(MORE), "{more:?} more than TCP");
}

/// Gives rxe1 an address in the network of rxe0 until this value is dropped.
struct Near;

const FAR: (&str, &str) = ("10.98.0.1/24", "0a62:0001");
const NEAR: (&str, &str) = ("10.99.0.2/24", "0a63:0002");

impl Near {
    fn new() -> Self {
        move_device(FAR, NEAR);
        Self
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        move_device(NEAR, FAR);
    }
}

/// Replaces the address of d1, and waits until the GID table shows the new address.
fn move_device((from, old): (&str, &str), (to, new): (&str, &str)) {
    ip(&format!("addr del {from} dev d1"));
    ip(&format!("addr add {to} dev d1"));
    let has = |gid: &str| {
        (0..8).any(|index| {
            let path = format!("/sys/class/infiniband/rxe1/ports/1/gids/{index}");
            std::fs::read_to_string(path).is_ok_and(|text| text.trim().ends_with(gid))
        })
    };
    eventually("another GID", || (has(new) && !has(old)).then_some(()));
}

impl Absence {
    /// Returns the time of the run over TCP.
    fn is_tcp_or_an_error(&self) -> Duration {
        let auto = run(self.sights, ["--transport auto"; 2]);
        println!("{:?}", auto.said());
        self.is_said(&auto);
        assert!(auto.ends[0].stdout == random_bytes(BYTES), "other bytes");

        let rdma = run(self.sights, ["--transport rdma"; 2]);
        println!("insisted: {:?}", rdma.said());
        self.is_refused(&rdma);
        auto.took
    }

    /// Checks that each end that must print the reason for TCP prints it in one line, and that no end prints more.
    fn is_said(&self, auto: &Outcome) {
        for (number, end) in auto.ends.iter().enumerate() {
            let text = end.exits(0);
            let lines: Vec<_> = text
                .lines()
                .filter(|line| !line.contains("listening on port"))
                .collect();
            let speaks = match self.said {
                Said::Nothing => false,
                Said::ByOne => number == 0,
                Said::ByBoth => true,
            };
            assert_eq!(lines.len(), usize::from(speaks), "{text}");
            for line in lines {
                let told = format!("the data goes over TCP: {}: ", host());
                assert!(line.contains(&told) && line.contains(self.why), "{line}");
            }
        }
    }

    /// Checks that both ends fail, and that each end that got far enough names the host, the reason and the remedy.
    fn is_refused(&self, rdma: &Outcome) {
        let mut told = 0;
        for end in &rdma.ends {
            // An end without a device fails before it connects; then the other end waits until it is interrupted, or
            // cannot connect.
            if end.stderr.contains("interrupted by SIGINT") {
                end.fails(130, &[]);
            } else if end.stderr.contains("cannot connect to ") {
                end.fails(255, &[]);
            } else {
                end.fails(255, &[host(), self.why, self.remedy]);
                told += 1;
            }
        }
        assert!(told > 0, "neither end says why: {:?}", rdma.said());
    }
}

/// Returns the name of this host, on which both ends run.
fn host() -> &'static str {
    static HOST: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    });
    &HOST
}

struct Outcome {
    /// The time that the sender took.
    took: Duration,
    /// The ends of the receiver and the sender.
    ends: [End; 2],
}

impl Outcome {
    fn said(&self) -> [&str; 2] {
        [&self.ends[0].stderr, &self.ends[1].stderr]
    }
}

/// Runs the receiver and the sender, each with its own view of the devices and its own options.
fn run([to, from]: [Sight; 2], options: [&str; 2]) -> Outcome {
    let place = crate::support::programs::Place::new();
    let input = place.file("in", &random_bytes(BYTES));
    let receiver = to.of(env!("CARGO_BIN_EXE_rdrecv"), "rdrecv");
    let receiver = with(receiver, &format!("0 {} {}", key(), options[0])).start();
    let listens = receiver.said("anything", |text| {
        text.contains('\n')
            .then(|| text.contains("listening on port"))
    });
    let (port, patience) = if listens {
        (receiver.port(), 10.0)
    } else {
        (crate::support::programs::free_port(), 0.1)
    };
    let began = Instant::now();
    let sender = from.of(env!("CARGO_BIN_EXE_rdsend"), "rdsend");
    let line = format!("127.0.0.1 {port} {} {}", key(), options[1]);
    let line = format!("{line} --connect-timeout {patience} -i {input}");
    let sender = with(sender, &line).start().end();
    let took = began.elapsed();
    // A receiver that the sender did not reach still waits for a sender, so it is interrupted.
    if sender.code() != 0 && listens && !sender.stderr.contains("does not allow TCP") {
        receiver.signal(Signal::INT);
    }
    let ends = [receiver.end(), sender];
    Outcome { took, ends }
}

/// Adds arguments that are separated by spaces.
pub(crate) fn with(
    mut setup: crate::support::programs::Setup,
    line: &str,
) -> crate::support::programs::Setup {
    for argument in line.split_whitespace() {
        setup = setup.arg(argument);
    }
    setup
}
