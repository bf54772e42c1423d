//! One pair of hosts: all measurements, in each form of the report.

use serde_json::Value;

use super::{
    quick,
    reports::{Report, cells, lines, number, text, what},
};
use crate::support::programs::hosts::{Network, Outcome};

/// What a pair without RDMA has, in the order of the report.
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
        "--json",
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
    let series = report.list("series");
    assert_eq!(series.iter().map(what).collect::<Vec<_>>(), MEASUREMENTS);
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
    has_row("latency, µs ", 8);
    for size in ["1 B", "4 KiB"] {
        for row in ["stream ", "socket, events ", "socket, busy "] {
            has_row(&format!("TCP {size}, {row}"), 8);
        }
    }
    has_row("TCP connect ", 8);
    let verdict = lines.last().expect("a verdict");
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
    assert_eq!(rows.len(), 1 + MEASUREMENTS.len(), "{rows:#?}");
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
    assert_eq!(names[8], "connect");
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
        "connect",
        "--transport",
        "tcp",
        "h1",
    ];
    let verbose = network
        .rdperf(["-v"].iter().chain(&arguments))
        .start()
        .end();
    let said = verbose.exits(0);
    assert_eq!(
        said.matches("here to h1, TCP, connect: ").count(),
        3,
        "{said}"
    );
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
fn only_what_is_asked_for_is_measured() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let wanted = [
        "--json",
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
