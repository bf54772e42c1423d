//! What an end counts while it measures: the time on the wall and of processors, and the counters of the kernel that
//! show lost packets.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    param::clock_ticks_per_second,
    time::{ClockId, clock_gettime},
};

use crate::perf::{
    facts::{HostRoots, decimal, names, trimmed},
    messages::{HostLoad, NetworkCounters},
};

/// The counters of an RDMA port for the packets that it has sent. Hardware has the first, rxe the second.
const PACKETS: &[&str] = &["counters/port_xmit_packets", "hw_counters/sent_pkts"];

/// The counters of an RDMA port that grow when a packet is lost. A receiver that is not ready (RNR) loses no packet.
const LOSSES: &[&str] = &[
    // mlx5, and in part hns and mlx4.
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    // rxe.
    "out_of_seq_request",
    "rcvd_seq_err",
    "completer_retry_err",
    "retry_exceeded_err",
    // bnxt_re.
    "to_retransmits",
    "seq_err_naks_rcvd",
    "oos_drop_count",
];

/// Reads the counters of this host as they are now.
pub(crate) fn snapshot() -> NetworkCounters {
    read(&HostRoots::default())
}

/// Returns how much the counters have grown from `before` to `after`. A counter that was reset has not grown.
pub(crate) fn growth(before: &NetworkCounters, after: &NetworkCounters) -> NetworkCounters {
    let grown = |count: fn(&NetworkCounters) -> u64| count(after).saturating_sub(count(before));
    NetworkCounters {
        tcp_segments: grown(|counters| counters.tcp_segments),
        tcp_retransmitted: grown(|counters| counters.tcp_retransmitted),
        rdma_packets: grown(|counters| counters.rdma_packets),
        rdma_losses: grown(|counters| counters.rdma_losses),
    }
}

/// Reads the counters below `roots`. Those that cannot be read are 0.
fn read(roots: &HostRoots) -> NetworkCounters {
    let snmp = trimmed(&roots.proc.join("net/snmp")).unwrap_or_default();
    let mut counters = NetworkCounters {
        tcp_segments: tcp_counter(&snmp, "OutSegs").unwrap_or(0),
        tcp_retransmitted: tcp_counter(&snmp, "RetransSegs").unwrap_or(0),
        ..NetworkCounters::default()
    };
    let class = roots.sys.join("class/infiniband");
    for device in names(&class) {
        let ports = class.join(device).join("ports");
        for port in names(&ports) {
            let (packets, losses) = port_counters(&ports.join(port));
            counters.rdma_packets = counters.rdma_packets.saturating_add(packets);
            counters.rdma_losses = counters.rdma_losses.saturating_add(losses);
        }
    }
    counters
}

/// Returns the packets that a port has sent, and its signs of lost packets.
fn port_counters(port: &Path) -> (u64, u64) {
    let packets = PACKETS
        .iter()
        .filter_map(|name| decimal::<u64>(&port.join(name)));
    let losses = LOSSES
        .iter()
        .filter_map(|name| decimal::<u64>(&port.join("hw_counters").join(name)));
    (
        packets.max().unwrap_or(0),
        losses.fold(0, u64::saturating_add),
    )
}

/// Returns a counter of TCP from the text of `/proc/net/snmp`: a line of names, then a line of numbers.
fn tcp_counter(snmp: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let column = names.split_whitespace().position(|found| found == name)?;
    numbers.split_whitespace().nth(column)?.parse().ok()
}

/// Measures what all programs of a host do with its processors.
pub(super) struct LoadClock(HostLoad);

impl LoadClock {
    pub(super) fn start() -> Self {
        Self(load_since_boot(&HostRoots::default()))
    }

    /// Returns the load since the start.
    pub(super) fn load(&self) -> HostLoad {
        let now = load_since_boot(&HostRoots::default());
        HostLoad {
            busy_nanos: now.busy_nanos.saturating_sub(self.0.busy_nanos),
            programs_nanos: now.programs_nanos.saturating_sub(self.0.programs_nanos),
            ..now
        }
    }
}

/// Reads the times of all processors below `roots`, as `/proc/stat` has them.
fn load_since_boot(roots: &HostRoots) -> HostLoad {
    let stat = trimmed(&roots.proc.join("stat")).unwrap_or_default();
    let is_processor = |line: &&str| {
        let number = line
            .strip_prefix("cpu")
            .and_then(|rest| rest.split(' ').next());
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks = all.unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = ticks.map_while(|ticks| ticks.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is a part of user and nice.
    let sum = |columns: &[usize]| {
        let of = |column: &usize| ticks.get(*column).copied().unwrap_or(0);
        let ticks = columns.iter().map(of).fold(0, u64::saturating_add);
        ticks.saturating_mul(tick_nanos())
    };
    let boot = trimmed(&roots.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
    let digits: String = boot.chars().filter(|c| *c != '-').take(16).collect();
    HostLoad {
        kernel: u64::from_str_radix(&digits, 16).unwrap_or(0),
        processors: u32::try_from(stat.lines().filter(is_processor).count()).unwrap_or(0),
        busy_nanos: sum(&[0, 1, 2, 5, 6, 7]),
        programs_nanos: sum(&[0, 1, 2, 7]),
    }
}

/// Returns the unit of time of `/proc/stat` in nanoseconds.
fn tick_nanos() -> u64 {
    1_000_000_000 / clock_ticks_per_second().max(1)
}

/// A clock that runs while an end measures.
pub(super) struct MeasureClock {
    started: Instant,
    processors: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredTime {
    /// The time in nanoseconds.
    pub(super) nanos: u64,
    /// The time of all threads of this process on processors, in nanoseconds.
    pub(super) cpu_nanos: u64,
}

impl MeasureClock {
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
            processors: process_time(),
        }
    }

    /// Returns the time since the start.
    pub(super) fn time(&self) -> MeasuredTime {
        MeasuredTime {
            nanos: nanos(self.started.elapsed()),
            cpu_nanos: nanos(process_time().saturating_sub(self.processors)),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time that all threads of this process have spent on processors.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // The kernel returns no negative time for this clock.
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SNMP: &str = "\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs InErrs
Tcp: 1 -1 5792 3211 17 0
Udp: InDatagrams
Udp: 3
";

    #[test]
    fn the_counters_of_tcp_and_of_all_rdma_ports_are_read() {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let roots = HostRoots::below(tree.path());
        assert_eq!(read(&roots), NetworkCounters::default());
        write("proc/net/snmp", SNMP);
        let port = "sys/class/infiniband/mlx5_0/ports";
        write(&format!("{port}/1/counters/port_xmit_packets"), "1000\n");
        write(&format!("{port}/1/hw_counters/out_of_sequence"), "2\n");
        write(&format!("{port}/1/hw_counters/rnr_nak_retry_err"), "99\n");
        write(&format!("{port}/2/hw_counters/packet_seq_err"), "3\n");
        let rxe = "sys/class/infiniband/rxe0/ports/1";
        write(&format!("{rxe}/counters/port_xmit_packets"), "0\n");
        write(&format!("{rxe}/hw_counters/sent_pkts"), "500\n");
        write(&format!("{rxe}/hw_counters/out_of_seq_request"), "5\n");
        let expected = NetworkCounters {
            tcp_segments: 3211,
            tcp_retransmitted: 17,
            rdma_packets: 1500,
            rdma_losses: 10,
        };
        assert_eq!(read(&roots), expected);
    }

    #[test]
    fn the_load_of_all_processors_is_read() {
        let tree = tempfile::tempdir().unwrap();
        let roots = HostRoots::below(tree.path());
        assert_eq!(load_since_boot(&roots), HostLoad::default());
        let proc = tree.path().join("proc");
        fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
        let id = "0123abcd-4567-89ab-cdef-0123456789ab\n";
        fs::write(proc.join("sys/kernel/random/boot_id"), id).unwrap();
        let stat = "cpu  10 20 30 4000 500 6 7 8 9 10\ncpu0 5 10 15 2000 250 3 3 4 4 5\n\
                    cpu1 5 10 15 2000 250 3 4 4 5 5\nintr 7 8\nctxt 9\n";
        fs::write(proc.join("stat"), stat).unwrap();
        let expected = HostLoad {
            kernel: 0x0123_abcd_4567_89ab,
            processors: 2,
            busy_nanos: 81 * tick_nanos(),
            programs_nanos: 68 * tick_nanos(),
        };
        assert_eq!(load_since_boot(&roots), expected);
        assert!(LoadClock::start().load().processors > 0);
    }

    #[test]
    fn a_counter_grows_or_was_reset() {
        let of = |segments, losses| NetworkCounters {
            tcp_segments: segments,
            rdma_losses: losses,
            ..NetworkCounters::default()
        };
        assert_eq!(growth(&of(10, 7), &of(15, 2)), of(5, 0));
    }

    #[test]
    fn the_columns_are_found_by_their_names() {
        assert_eq!(tcp_counter(SNMP, "OutSegs"), Some(3211));
        assert_eq!(tcp_counter(SNMP, "MaxConn"), None, "a negative number");
        assert_eq!(tcp_counter(SNMP, "Missing"), None);
        assert_eq!(tcp_counter("Tcp: OutSegs\n", "OutSegs"), None);
    }

    #[test]
    fn this_host_has_sent_segments() {
        use std::net::{TcpListener, TcpStream};

        let before = snapshot();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(growth(&before, &snapshot()).tcp_segments > 0);
    }

    #[test]
    fn a_busy_process_uses_processor_time() {
        let clock = MeasureClock::start();
        while clock.time().cpu_nanos < 1_000_000 {
            std::hint::black_box(0);
        }
        assert!(clock.time().nanos > 0);
    }
}
