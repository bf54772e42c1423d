//! The file of metrics, for the textfile collector of Prometheus' node exporter.

use std::{fmt::Write, io, path::Path};

use super::{
    rates::{RATE_WINDOWS, RatesNow},
    server_totals::ServerTotals,
};
use crate::fd::replace_file;

/// The mode of the file of metrics: the collector runs as another user.
const METRICS_MODE: u32 = 0o644;

/// Replaces the file at `path` with `text`. A reader finds either the old text or the new one, and never a part. The
/// collector reads files whose name ends with `.prom`.
///
/// Blocks, for as long as the file system takes to write a small file.
///
/// # Errors
///
/// Fails if the directory cannot be written, or if `path` is something other than a regular file. The old file is then
/// unchanged.
pub(in crate::cli::rdcp::serve) fn write_metrics(path: &Path, text: &str) -> io::Result<()> {
    replace_file(path, text.as_bytes(), METRICS_MODE)
}

/// Returns the metrics as text, in the format that Prometheus reads: a line of help, a line with the type, and a line
/// for each value. The units are seconds and bytes.
pub(in crate::cli::rdcp::serve) fn metrics_text(totals: &ServerTotals, rates: &RatesNow) -> String {
    let mut text = String::new();
    let build = concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
    let help = "The version of the server.";
    describe(&mut text, "build_info", help, "gauge", &[(build, "1")]);
    let uptime = totals.uptime.as_secs().to_string();
    let help = "The time since the start of the server.";
    describe(&mut text, "uptime_seconds", help, "gauge", &[("", &uptime)]);
    let clients = totals.clients_now.to_string();
    let help = "The clients that are connected.";
    describe(&mut text, "clients", help, "gauge", &[("", &clients)]);
    for (name, help, value) in counters(totals) {
        describe(
            &mut text,
            name,
            help,
            "counter",
            &[("", &value.to_string())],
        );
    }
    for (name, help, rates) in [
        (
            "received_bytes_per_second",
            "The bytes per second that arrived from clients, over the last seconds.",
            rates.received,
        ),
        (
            "sent_bytes_per_second",
            "The bytes per second that were sent to clients, over the last seconds.",
            rates.sent,
        ),
    ] {
        let labels = RATE_WINDOWS.map(|window| format!("{{window=\"{}s\"}}", window.as_secs()));
        let values = rates.map(|rate| format!("{rate:.0}"));
        let samples = labels.iter().zip(&values);
        let samples: Vec<_> = samples.map(|(l, v)| (l.as_str(), v.as_str())).collect();
        describe(&mut text, name, help, "gauge", &samples);
    }
    text
}

/// Returns name, help and value of each counter.
fn counters(totals: &ServerTotals) -> [(&'static str, &'static str, u64); 8] {
    [
        (
            "copies_begun_total",
            "Copies that have begun.",
            totals.copies_begun,
        ),
        (
            "copies_ended_total",
            "Copies that have ended, with those that failed.",
            totals.copies_ended,
        ),
        (
            "copies_failed_total",
            "Copies that failed.",
            totals.copies_failed,
        ),
        (
            "clients_refused_total",
            "Connections that were refused, with an unknown key or from strangers.",
            totals.clients_refused,
        ),
        (
            "files_written_total",
            "Files from clients that were written.",
            totals.files_written,
        ),
        (
            "files_sent_total",
            "Files that were sent to clients.",
            totals.files_sent,
        ),
        (
            "received_bytes_total",
            "Bytes that arrived from clients.",
            totals.bytes_received,
        ),
        (
            "sent_bytes_total",
            "Bytes that were sent to clients.",
            totals.bytes_sent,
        ),
    ]
}

/// Appends a metric: its help, its type, and its values with their labels.
fn describe(text: &mut String, name: &str, help: &str, kind: &str, values: &[(&str, &str)]) {
    let _ = writeln!(text, "# HELP rdcp_{name} {help}");
    let _ = writeln!(text, "# TYPE rdcp_{name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(text, "rdcp_{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs, os::unix::fs::PermissionsExt, time::Duration};

    use super::*;

    fn example() -> String {
        let totals = ServerTotals {
            copies_begun: 5,
            copies_ended: 4,
            copies_failed: 1,
            clients_refused: 2,
            clients_now: 3,
            files_written: 70,
            files_sent: 80,
            bytes_received: 1 << 60,
            bytes_sent: 9,
            uptime: Duration::from_millis(61_900),
        };
        let rates = RatesNow {
            received: [1.25e9, 0.4, 0.0],
            sent: [0.0; 3],
        };
        metrics_text(&totals, &rates)
    }

    #[test]
    fn the_text_has_every_total() {
        let text = example();
        let version = env!("CARGO_PKG_VERSION");
        for line in [
            "# TYPE rdcp_copies_begun_total counter",
            "rdcp_copies_begun_total 5",
            "rdcp_copies_ended_total 4",
            "rdcp_copies_failed_total 1",
            "rdcp_clients_refused_total 2",
            "# TYPE rdcp_clients gauge",
            "rdcp_clients 3",
            "rdcp_files_written_total 70",
            "rdcp_files_sent_total 80",
            "rdcp_received_bytes_total 1152921504606846976",
            "rdcp_sent_bytes_total 9",
            "rdcp_uptime_seconds 61",
            "rdcp_received_bytes_per_second{window=\"10s\"} 1250000000",
            "rdcp_received_bytes_per_second{window=\"60s\"} 0",
            "rdcp_sent_bytes_per_second{window=\"300s\"} 0",
            &format!("rdcp_build_info{{version=\"{version}\"}} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_text_has_the_form_that_prometheus_reads() {
        let text = example();
        assert!(text.ends_with('\n'));
        let mut described = HashSet::new();
        let mut current = String::new();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["#", "HELP", name, ..] => {
                    name.clone_into(&mut current);
                    assert!(described.insert(name), "{line}");
                    assert!(line.ends_with('.'), "{line}");
                }
                ["#", "TYPE", name, kind] => {
                    assert_eq!(name, current);
                    assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                }
                [name, value] => {
                    assert_eq!(name.split('{').next(), Some(&*current));
                    assert!(value.parse::<u64>().is_ok(), "{line}");
                }
                _ => panic!("{line}"),
            }
        }
    }

    #[test]
    fn the_file_is_replaced_whole_and_all_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rdcp.prom");
        for text in ["a longer text\n", "short\n"] {
            write_metrics(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o644);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(write_metrics(directory.path(), "text").is_err());
        assert!(write_metrics(&directory.path().join("none/x"), "text").is_err());
    }
}
