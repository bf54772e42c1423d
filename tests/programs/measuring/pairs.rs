//! What is measured between one pair of hosts, in each form of the report, between several hosts in pairs, and by
//! `--pingpong`: the table that tutorials about RDMA begin with.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{
    checks::{drop_some, lacks_firewall, lacks_shaping, refuse, slow_down},
    quick,
    reports::{Report, cells, lines, number, rails, text, what},
};
use crate::support::programs::{
    hosts::{Network, Outcome},
    local_hosts::Hosts,
};

/// Returns what a pair without RDMA has, in the order of the report.
fn measurements() -> Vec<String> {
    let rails = rails().into_iter();
    let rails = rails.map(|rails| format!("bandwidth stream tcp forward 1 {rails}"));
    let (before, after) = MEASUREMENTS.split_at(3);
    let before = before.iter().map(ToString::to_string);
    let after = after.iter().map(ToString::to_string);
    before.chain(rails).chain(after).collect()
}

/// What every such pair has: streams of several rails follow the third row.
const MEASUREMENTS: [&str; 9] = [
    "bandwidth stream tcp forward 1",
    "bandwidth stream tcp backward 1",
    "bandwidth stream tcp both 1",
    "bandwidth stream tcp forward 4",
    "bandwidth socket tcp forward 1",
    "latency stream tcp adaptive 64",
    "latency socket tcp event 64",
    "latency socket tcp busy 64",
    "connect tcp",
];

/// The ciphers of streams between two hosts.
const CIPHERS: [&str; 2] = ["AES-256-GCM", "ChaCha20-Poly1305"];

/// The programs that others measure with. A host need not have them.
const OTHERS: [&str; 6] = [
    "ib_write_bw",
    "ib_write_lat",
    "ib_send_lat",
    "qperf",
    "iperf3",
    "netperf",
];

#[test]
fn a_pair_is_measured_in_full_without_any_other_program() {
    let Some(network) = Network::new(1) else {
        return;
    };
    for (host, program) in ["ctl", "h1"]
        .into_iter()
        .flat_map(|host| OTHERS.map(|program| (host, program)))
    {
        let called = network.file(host, "called");
        network.install(
            host,
            program,
            &format!("echo $0 >>{}; exit 1", called.display()),
        );
    }
    let arguments = [
        "--json=-",
        "--time",
        "0.1",
        "--runs",
        "2",
        "--transport",
        "tcp",
        "h1",
    ];
    // Only ssh is in this PATH, beside what must not be called.
    let rdperf = network
        .rdperf(arguments)
        .env("PATH", network.own("ctl/bin"));
    let end = rdperf.start().end();
    assert_eq!(end.exits(0), "");
    for host in ["ctl", "h1"] {
        assert!(
            network.names(host).is_empty(),
            "{host} has {:?}",
            network.names(host)
        );
    }
    let report = Report::of(&end);
    assert_eq!(report.0["version"], 1);
    assert_eq!(report.0["exit"], 0);
    assert_eq!(report.text("rdperf"), env!("CARGO_PKG_VERSION"));
    assert!(number(&report.0, "started") > 1.7e9);
    assert!(report.list("errors").is_empty());
    let hosts = report.list("hosts").iter();
    let hosts: Vec<_> = hosts
        .map(|host| (text(host, "name"), text(host, "version")))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(hosts, [("here", version), ("h1", version)]);
    assert_eq!(report.list("hosts")[1]["host_name"], "h1");
    for host in report.list("hosts") {
        let ciphers = host["ciphers"].as_array().expect("ciphers");
        let names: Vec<_> = ciphers.iter().map(|one| text(one, "cipher")).collect();
        assert_eq!(names, CIPHERS);
        let is_fast = |one: &Value| number(one, "bytes_per_second") > 1e6;
        assert!(ciphers.iter().all(is_fast), "{host:#}");
    }
    let series = report.list("series");
    assert_eq!(series.iter().map(what).collect::<Vec<_>>(), measurements());
    for series in series {
        assert_eq!((text(series, "from"), text(series, "to")), ("here", "h1"));
        let runs = series["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2, "{series:#}");
        for run in runs {
            assert_is_whole(series, run);
        }
    }
    let verdict = report.text("verdict");
    assert!(
        verdict.starts_with("here to h1, TCP: network "),
        "{verdict}"
    );
}

/// Checks that the figures of a run agree with each other.
#[track_caller]
fn assert_is_whole(series: &Value, run: &Value) {
    assert!(number(run, "value") > 0.0, "{series:#}");
    if what(series).starts_with("bandwidth") {
        assert!(number(run, "bytes") > 0.0, "{series:#}");
        assert!(number(run, "cpu_dialer") > 0.0, "{series:#}");
        assert!(number(run, "cpu_listener") > 0.0, "{series:#}");
        assert!(number(&run["counters"], "tcp_segments") > 0.0, "{series:#}");
        // A socket has no transport of its own to tell of.
        if what(series).contains("stream") {
            assert_eq!(text(run, "address"), "10.77.0.1");
            assert!(CIPHERS.contains(&text(run, "cipher")), "{series:#}");
        }
        return;
    }
    let steps = run["histogram"].as_array().expect("a histogram").iter();
    let steps: Vec<_> = steps
        .map(|step| [0, 1].map(|index| step[index].as_u64().expect("a number")))
        .collect();
    assert!(
        steps.windows(2).all(|pair| pair[0][0] < pair[1][0]),
        "{steps:?}"
    );
    let count: u64 = steps.iter().map(|[_, count]| count).sum();
    // A histogram knows each time within a percent.
    #[allow(clippy::cast_precision_loss, reason = "a percent is enough")]
    let mean = steps
        .iter()
        .map(|[nanos, count]| (nanos * count) as f64)
        .sum::<f64>()
        / count as f64;
    let average = number(run, "average_us") * 1000.0;
    assert!((mean / average - 1.0).abs() < 0.02, "{mean} and {average}");
    let mut seen = 0;
    let median = steps.iter().find(|[_, step]| {
        seen += step;
        seen * 2 >= count
    });
    #[allow(clippy::cast_precision_loss, reason = "a percent is enough")]
    let median = median.expect("a median")[0] as f64;
    let value = number(run, "value") * 1000.0;
    assert!((median / value - 1.0).abs() < 0.02, "{median} and {value}");
    assert!(number(run, "trips_per_second") > 0.0);
}

#[test]
fn people_get_tables_and_a_verdict() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let end = network
        .rdperf(quick(&["--size", "1,4K", "h1"]))
        .start()
        .end();
    // Without a terminal there is no progress.
    assert_eq!(end.exits(0), "");
    let lines = lines(&end);
    let has_row = |beginning: &str, cells: usize| {
        let row = lines.iter().find(|line| line.starts_with(beginning));
        let row = row.unwrap_or_else(|| panic!("no {beginning:?} in {lines:#?}"));
        let figures = row[beginning.len()..].split_whitespace();
        assert!(figures.count() >= cells, "{row}");
    };
    for host in ["here", "h1"] {
        has_row(
            &format!("{host}: rdpipe {}, Linux ", env!("CARGO_PKG_VERSION")),
            3,
        );
    }
    has_row("here to h1: auto uses TCP (", 1);
    has_row("from here to h1", 0);
    has_row("bandwidth, GB/s ", 4);
    for row in [
        "stream, one way ",
        "stream, the other way ",
        "stream, both ways ",
        "4 streams, one way ",
        "socket, one way ",
    ] {
        // The rate, its spread, and the processor time of both ends.
        has_row(row, 5);
    }
    // What one thread encrypts, and the processor time of both ends.
    let cipher = CIPHERS.map(|cipher| format!("{cipher}, one thread "));
    let cipher = cipher
        .iter()
        .find(|row| lines.iter().any(|line| line.starts_with(*row)));
    has_row(cipher.expect("a cipher"), 4);
    has_row("latency, µs ", 8);
    for size in ["1 B", "4 KiB"] {
        for row in ["stream ", "socket, events ", "socket, busy "] {
            has_row(&format!("TCP {size}, {row}"), 8);
        }
    }
    has_row("TCP connect ", 8);
    let mut verdict = lines.iter().rev();
    if !rails().is_empty() {
        let rails = verdict.next().expect("a verdict about rails");
        assert!(rails.starts_with("rails: "), "{rails}");
        has_row("stream of 2 rails, one way ", 5);
    }
    let verdict = verdict.next().expect("a verdict");
    assert!(
        verdict.starts_with("here to h1, TCP: network "),
        "{verdict}"
    );
    assert!(verdict.contains(" limit"), "{verdict}");
}

#[test]
fn programs_get_a_row_for_each_measurement() {
    let Some(network) = Network::new(2) else {
        return;
    };
    let end = network.rdperf(quick(&["--csv", "h1", "h2"])).start().end();
    assert_eq!(end.exits(0), "");
    let rows: Vec<_> = lines(&end).iter().map(|line| cells(line)).collect();
    let heading = &rows[0];
    assert_eq!(
        heading[..6],
        ["from", "to", "transport", "measurement", "unit", "median"]
    );
    assert_eq!(rows.len(), 1 + measurements().len(), "{rows:#?}");
    let column = |name: &str| {
        let found = heading.iter().position(|cell| cell == name);
        found.unwrap_or_else(|| panic!("no {name} in {heading:?}"))
    };
    for row in &rows[1..] {
        assert_eq!(row.len(), heading.len(), "{row:?}");
        assert_eq!(row[..3], ["h1", "h2", "TCP"]);
        let value = |name: &str| row[column(name)].parse::<f64>();
        assert!(value("median").is_ok_and(|median| median > 0.0), "{row:?}");
        assert_eq!(row[column("runs")], "1");
        let is_time = row[column("unit")] == "us";
        for name in [
            "p50_us",
            "p99.9_us",
            "max_us",
            "trips_per_second",
            "average_us",
        ] {
            assert_eq!(value(name).is_ok(), is_time, "{name} of {row:?}");
        }
    }
    let names: Vec<_> = rows[1..]
        .iter()
        .map(|row| &row[column("measurement")])
        .collect();
    assert_eq!(names[0], "stream, one way");
    assert_eq!(names.last().unwrap().as_str(), "connect");
}

#[test]
fn every_run_is_printed_with_v_and_nothing_with_q() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let arguments = [
        "--time",
        "0.1",
        "--runs",
        "3",
        "--measure",
        "latency,connect",
        "--transport",
        "tcp",
        "h1",
    ];
    let verbose = network
        .rdperf(["-v"].iter().chain(&arguments))
        .start()
        .end();
    let said = verbose.exits(0);
    let runs = said
        .lines()
        .filter(|line| line.contains("here to h1, TCP, connect: "));
    assert_eq!(runs.count(), 3, "{said}");
    let streams = said
        .lines()
        .filter(|line| line.contains("TCP, 64 B, stream: "));
    let named = |line: &&str| CIPHERS.iter().any(|cipher| line.ends_with(cipher));
    assert_eq!(streams.filter(named).count(), 3, "{said}");
    let quiet = network
        .rdperf(["-q"].iter().chain(&arguments))
        .start()
        .end();
    assert_eq!(quiet.exits(0), "");
    assert!(
        lines(&quiet)
            .last()
            .is_some_and(|verdict| verdict.starts_with("here to h1, TCP"))
    );
}

#[test]
fn a_rate_that_was_expected_decides_on_the_exit_status() {
    let hosts = Hosts::new("");
    let run = |rate: &str, form: &[&str]| {
        let arguments = ["--measure", "bandwidth", "--expect", rate, "h1", "h2"];
        let end = hosts
            .rdperf(&quick(&[form, &arguments[..]].concat()))
            .start()
            .end();
        assert!(!end.stdout.is_empty(), "{}", end.stderr);
        end
    };
    assert_eq!(run("1kbit", &[]).exits(0), "");
    let end = run("900Tbit/s", &[]);
    end.fails(1, &["h1 to h2: ", " Tbit/s, and 900 Tbit/s was expected"]);
    let report = Report::of(&run("100TB/s", &["--json=-"]));
    assert_eq!(report.0["exit"], 1);
    let error = report.list("errors")[0].as_str().unwrap();
    assert!(
        error.ends_with(" TB/s, and 100 TB/s was expected"),
        "{error}"
    );
}

/// A program that keeps a processor busy while it is held.
struct BusyLoop(std::process::Child);

impl BusyLoop {
    fn start() -> Self {
        let mut command = std::process::Command::new("sh");
        Self(command.args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for BusyLoop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn programs_that_keep_the_processors_busy_are_the_limit() {
    let hosts = Hosts::new("");
    let processors = std::thread::available_parallelism().unwrap().get();
    let _busy: Vec<_> = (0..2 * processors).map(|_| BusyLoop::start()).collect();
    let arguments = [
        "--time",
        "0.5",
        "--runs",
        "1",
        "--measure",
        "bandwidth",
        "h1",
        "h2",
    ];
    let end = hosts.rdperf(&arguments).start().end();
    end.exits(0);
    let lines = lines(&end);
    let is_named = |line: &String| {
        line.contains("the processors of h")
            && line.contains(" are the limit, other programs keep ")
    };
    assert!(lines.iter().any(is_named), "{lines:#?}");
}

#[test]
fn only_what_is_asked_for_is_measured() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let wanted = [
        "--json=-",
        "--measure",
        "bandwidth,connect",
        "--streams",
        "2",
        "h1",
    ];
    let end = network.rdperf(quick(&wanted)).start().end();
    end.exits(0);
    let report = Report::of(&end);
    let expected = [
        "bandwidth stream tcp forward 2",
        "bandwidth stream tcp backward 2",
        "bandwidth stream tcp both 2",
        "bandwidth socket tcp forward 1",
        "connect tcp",
    ];
    assert_eq!(
        report.list("series").iter().map(what).collect::<Vec<_>>(),
        expected
    );
    end.is_silent_on(&["panicked"]);
}

#[test]
fn a_slow_link_and_a_lossy_one_among_five_hosts_are_named() {
    let Some(network) = Network::new(5) else {
        return;
    };
    if lacks_firewall(&network) || lacks_shaping(&network) {
        return;
    }
    slow_down(&network, "h2", "10.77.0.4");
    drop_some(&network, "h5", "10.77.0.3");
    let hosts: Vec<_> = network.hosts().collect();
    let options = [
        "--json=-",
        "--measure",
        "bandwidth",
        // Long enough for the 1000 segments that a finding needs, also after a timeout of TCP.
        "--time",
        "0.5",
        "--runs",
        "1",
        "--transport",
        "tcp",
    ];
    let options = options.map(str::to_owned);
    let end = network.rdperf(options.iter().chain(&hosts)).start().end();
    end.exits(0);
    let report = Report::of(&end);
    // Of each two hosts, one dials, and both directions are measured.
    for from in &hosts {
        for to in hosts.iter().filter(|to| *to != from) {
            let found = report.list("series").iter().filter(|series| {
                let (dialer, listener) = (text(series, "from"), text(series, "to"));
                match what(series).as_str() {
                    "bandwidth stream tcp forward 1" => (dialer, listener) == (from, to),
                    "bandwidth stream tcp backward 1" => (listener, dialer) == (from, to),
                    other => panic!("{other} was measured"),
                }
            });
            let rates: Vec<_> = found
                .map(|series| number(&series["runs"][0], "value"))
                .collect();
            assert!(
                rates.len() == 1 && rates[0] > 0.0,
                "{from} to {to}: {rates:?}"
            );
        }
    }
    assert_eq!(report.list("series").len(), 20);
    // Loss makes a pair slow too, and the slowest comes first.
    let slow = report.subjects("slow-pair");
    assert!(slow.contains(&"h2 to h4"), "{:#}", report.0);
    assert!(
        report.subjects("loss-tcp").contains(&"h3 to h5"),
        "{:#}",
        report.0
    );
    for (code, subject, words) in [
        ("slow-pair", "h2 to h4", ["ethtool", "h2 and h4"]),
        ("loss-tcp", "h3 to h5", ["ip -s link", "h3, h5"]),
    ] {
        let remedy = report.remedy(code, subject);
        assert!(words.iter().all(|word| remedy.contains(word)), "{remedy}");
    }
    let verdict = report.text("verdict");
    let slowest = format!("the slowest is {}", slow[0]);
    assert!(verdict.contains(&slowest), "{verdict}");
}

#[test]
fn a_matrix_has_a_row_and_a_column_for_each_host() {
    let Some(network) = Network::new(3) else {
        return;
    };
    // The user name is not a part of the name in the report. This machine is one of the hosts.
    let end = network.rdperf(quick(&[
        "--measure",
        "bandwidth,latency",
        "root@h1",
        ":",
        "h3",
    ]));
    let end = end.start().end();
    assert_eq!(end.exits(0), "");
    let lines = lines(&end);
    for title in ["bandwidth, GB/s, TCP", "latency p50, µs, TCP"] {
        let at = lines.iter().position(|line| line.starts_with(title));
        let at = at.unwrap_or_else(|| panic!("no {title} in {lines:#?}"));
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&lines[at][title.len()..]), ["h1", "here", "h3"]);
        for (row, host) in ["h1", "here", "h3"].into_iter().enumerate() {
            let cells = words(&lines[at + 1 + row]);
            assert_eq!(cells[..2], [host, "to"]);
            for (column, cell) in cells[2..].iter().enumerate() {
                assert_eq!(cell.parse::<f64>().is_ok(), column != row, "{cells:?}");
            }
            assert_eq!(cells.len(), 5);
        }
    }
    let verdict = lines.last().expect("a verdict");
    assert!(
        verdict.starts_with("TCP: the median of all pairs is "),
        "{verdict}"
    );
}

#[test]
fn the_table_has_four_rows() {
    let Some(network) = Network::new(2) else {
        return;
    };
    // This machine and h1, or h1 and h2.
    for hosts in [&["h1"][..], &["h1", "h2"]] {
        let arguments = ["--pingpong", "--time", "0.1", "--runs", "1"];
        let end = network.rdperf(arguments).args(hosts).start().end();
        // A row without figures has a reason.
        for place in ["localhost", "network"] {
            let note = format!("{place}, RDMA: ");
            assert!(end.exits(0).contains(&note), "{}", end.stderr);
        }
        is_the_table(&lines(&end));
    }
}

/// Checks the heading of the table, and each of its rows.
#[track_caller]
fn is_the_table(lines: &[String]) {
    assert_eq!(lines.len(), 6, "{lines:#?}");
    let cells = |line: &str| {
        let inner = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'));
        let inner = inner.unwrap_or_else(|| panic!("{line} is no row"));
        inner
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        cells(&lines[0]),
        ["Where", "What", "RoundTrips / second", "avg. latency in µs"]
    );
    let places = ["localhost", "localhost", "network", "network"];
    let media = ["TCP", "RDMA", "TCP", "RDMA"];
    for (line, (place, medium)) in lines[2..].iter().zip(places.into_iter().zip(media)) {
        let cells = cells(line);
        assert_eq!(cells[..2], [place, medium]);
        let figures = cells[2..]
            .iter()
            .map(|cell| cell.replace(',', "").parse::<f64>());
        let figures: Vec<_> = figures.collect();
        // Without RDMA, its rows are empty.
        let is_empty = medium == "RDMA" && cells[2..] == ["-", "-"];
        assert!(
            is_empty
                || figures
                    .iter()
                    .all(|figure| figure.as_ref().is_ok_and(|figure| *figure > 0.0)),
            "{line}"
        );
    }
}

#[test]
fn the_options_of_other_forms_are_refused() {
    let Some(network) = Network::new(1) else {
        return;
    };
    for option in ["--json=-", "--csv", "--check"] {
        let end = network
            .rdperf(quick(&["--pingpong", option, "h1"]))
            .start()
            .end();
        end.exits(2);
        assert!(end.stdout.is_empty());
    }
}

#[test]
fn a_row_that_cannot_be_measured_is_an_error() {
    let Some(network) = Network::new(1) else {
        return;
    };
    if lacks_firewall(&network) {
        return;
    }
    // The address of this machine.
    refuse(&network, "h1", "10.77.0.100");
    let arguments = ["--pingpong", "--time", "0.1", "--runs", "2", "h1"];
    let end = network.rdperf(arguments).start().end();
    end.tells(255, &["network, TCP", "refused"]);
    let lines = lines(&end);
    assert_eq!(lines.len(), 6, "{lines:#?}");
    assert!(
        !lines[2].ends_with("- |") && lines[4].ends_with("- |"),
        "{lines:#?}"
    );
}

#[test]
fn an_interruption_of_the_table_leaves_nothing() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let rdperf = network
        .rdperf(["--pingpong", "--time", "100", "h1"])
        .start();
    network.process("h1", "--agent=worker");
    let since = rdperf.signal(Signal::INT);
    let end = rdperf.end();
    // The note that there is no RDMA may have been printed before.
    end.tells(130, &["interrupted by", "SIGINT"]);
    network.assert_empty(since, Duration::from_secs(15));
}
