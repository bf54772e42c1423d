//! What a server of copies counts: the line of its log, and the file of metrics for the textfile collector of
//! Prometheus' node exporter.

use std::{
    collections::HashMap,
    fmt::Write,
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::served_copies::ServedSide;
use crate::{
    Direction, Stream, Watch,
    cli::{
        server::ServerStatus,
        shared::report::{amount, counted, decimal, rate},
    },
    copy::order::CopyReport,
    fd::replace_file,
};

#[derive(Default)]
pub(super) struct CopyTally(Mutex<CopyCounts>);

#[derive(Default)]
struct CopyCounts {
    /// What has ended; the bytes of running copies are not in it.
    ended: CopyTotals,
    /// The lanes of running copies, by the numbers of their sessions.
    running: HashMap<u64, Vec<Watch>>,
}

impl CopyTally {
    /// Counts an edge of a session that is connected.
    pub(super) fn connected(&self, session: u64, stream: &Stream) {
        // The two-way stream carries questions and no contents.
        if stream.direction() == Direction::Both {
            return;
        }
        let counts = &mut *self.lock();
        let watches = counts.running.entry(session).or_default();
        if watches.is_empty() {
            // A copy begins with its first lane.
            counts.ended.begun += 1;
        }
        watches.push(stream.watch());
    }

    /// Counts the end of a session. `report` is what its copy did on this side, if it ended by itself.
    pub(super) fn ended(
        &self,
        session: u64,
        side: ServedSide,
        report: Option<&CopyReport>,
        has_failed: bool,
    ) {
        let mut counts = self.lock();
        let watches = counts.running.remove(&session).unwrap_or_default();
        let ended = &mut counts.ended;
        ended.add_bytes(&watches);
        ended.ended += u64::from(!watches.is_empty());
        ended.failed += u64::from(has_failed);
        let files = match side {
            ServedSide::Source => &mut ended.files_sent,
            ServedSide::Destination => &mut ended.files_written,
        };
        *files += report.map_or(0, |report| report.files);
    }

    /// Returns everything so far, of a server that is in this state.
    pub(super) fn totals(&self, server: ServerStatus) -> CopyTotals {
        let counts = self.lock();
        let mut totals = counts.ended;
        for watches in counts.running.values() {
            totals.add_bytes(watches);
        }
        CopyTotals { server, ..totals }
    }

    fn lock(&self) -> MutexGuard<'_, CopyCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server and its copies have done since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CopyTotals {
    pub(super) server: ServerStatus,
    begun: u64,
    ended: u64,
    failed: u64,
    /// Files that clients have sent and the server has written.
    files_written: u64,
    files_sent: u64,
    /// Bytes that clients have sent.
    bytes_received: u64,
    bytes_sent: u64,
}

impl CopyTotals {
    fn add_bytes(&mut self, watches: &[Watch]) {
        for stats in watches.iter().map(Watch::stats) {
            self.bytes_received += stats.bytes_received;
            self.bytes_sent += stats.bytes_sent;
        }
    }

    /// Returns the line for the log, with the rates since the totals of `last`. A direction that has never moved a byte
    /// is left out. Returns none if nothing has happened since `last`.
    pub(super) fn log_line(&self, last: &Self) -> Option<String> {
        let directions = [
            ("in", self.bytes_received, last.bytes_received),
            ("out", self.bytes_sent, last.bytes_sent),
        ];
        let has_moved = directions.iter().any(|(_, now, last)| now != last);
        if !has_moved && self.server.sessions == last.server.sessions {
            return None;
        }
        let seconds = self.server.uptime.saturating_sub(last.server.uptime);
        let seconds = seconds.as_secs_f64();
        let mut line = counted(self.server.sessions, "client", "clients");
        for (word, now, last) in directions.into_iter().filter(|(_, now, _)| *now > 0) {
            let rate = rate(now.saturating_sub(last), seconds);
            // Below 1 kB a fraction says nothing.
            let rate = if rate < 999.5 {
                format!("{rate:.0} B")
            } else {
                decimal(rate)
            };
            let _ = write!(line, "; {word} {rate}/s");
        }
        Some(line + "; " + &self.since_start())
    }

    /// Returns what the server has done since its start, in words.
    pub(super) fn since_start(&self) -> String {
        let mut line = counted(self.ended, "copy", "copies");
        if self.failed > 0 {
            let _ = write!(line, ", {} failed", self.failed);
        }
        if self.server.refused > 0 {
            let refused = counted(self.server.refused, "client", "clients");
            let _ = write!(line, ", {refused} refused");
        }
        for (word, bytes) in [("received", self.bytes_received), ("sent", self.bytes_sent)] {
            if bytes > 0 {
                let _ = write!(line, ", {} {word}", amount(bytes));
            }
        }
        line.push_str(" since the start");
        line
    }

    /// Returns the metrics as text, in the format that Prometheus reads: a line of help, a line with the type, and the
    /// value. The units are seconds and bytes.
    fn metrics(&self) -> String {
        let mut text = String::new();
        let mut describe = |kind: &str, name: &str, help: &str, value: u64| {
            let (bare, _) = name.split_once('{').unwrap_or((name, ""));
            let _ = writeln!(text, "# HELP rdcp_{bare} {help}");
            let _ = writeln!(text, "# TYPE rdcp_{bare} {kind}");
            let _ = writeln!(text, "rdcp_{name} {value}");
        };
        let build = concat!("build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
        for (name, help, value) in [
            (build, "The version of the server.", 1),
            (
                "uptime_seconds",
                "The time since the start of the server.",
                self.server.uptime.as_secs(),
            ),
            (
                "clients",
                "The clients that are connected.",
                self.server.sessions,
            ),
        ] {
            describe("gauge", name, help, value);
        }
        for (name, help, value) in self.counters() {
            describe("counter", name, help, value);
        }
        text
    }

    /// Returns name, help and value of each counter.
    fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            ("copies_begun_total", "Copies that have begun.", self.begun),
            (
                "copies_ended_total",
                "Copies that have ended, with those that failed.",
                self.ended,
            ),
            ("copies_failed_total", "Copies that failed.", self.failed),
            (
                "clients_refused_total",
                "Connections that were refused, with an unknown key or from strangers.",
                self.server.refused,
            ),
            (
                "files_written_total",
                "Files from clients that were written.",
                self.files_written,
            ),
            (
                "files_sent_total",
                "Files that were sent to clients.",
                self.files_sent,
            ),
            (
                "received_bytes_total",
                "Bytes that arrived from clients.",
                self.bytes_received,
            ),
            (
                "sent_bytes_total",
                "Bytes that were sent to clients.",
                self.bytes_sent,
            ),
        ]
    }

    /// Replaces the file of metrics at `path`. A reader finds either the old text or the new one, and never a part. The
    /// collector reads files whose name ends with `.prom`.
    ///
    /// Blocks, for as long as the file system takes to write a small file.
    /// Fails if the directory cannot be written, or if `path` is something other than a regular file. The old file is
    /// then unchanged.
    pub(super) fn write_metrics(&self, path: &Path) -> io::Result<()> {
        /// The collector runs as another user.
        const MODE: u32 = 0o644;
        replace_file(path, self.metrics().as_bytes(), MODE)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs, os::unix::fs::PermissionsExt, time::Duration};

    use super::*;

    fn status(sessions: u64, refused: u64, seconds: u64) -> ServerStatus {
        ServerStatus {
            sessions,
            refused,
            uptime: Duration::from_millis(seconds * 1000 + 900),
        }
    }

    #[test]
    fn the_log_line_says_what_the_server_does() {
        let last = CopyTotals {
            server: status(3, 0, 100),
            bytes_received: 5_288_000_000_000,
            ..CopyTotals::default()
        };
        let totals = CopyTotals {
            server: status(3, 0, 110),
            begun: 123,
            ended: 120,
            failed: 2,
            bytes_received: 5_300_000_000_000,
            ..last
        };
        assert_eq!(
            totals.log_line(&last).unwrap(),
            "3 clients; in 1.2 GB/s; 120 copies, 2 failed, 5.3 TB received since the start"
        );
        let later = CopyTotals {
            server: status(1, 7, 120),
            bytes_sent: 10,
            failed: 0,
            ended: 1,
            ..totals
        };
        assert_eq!(
            later.log_line(&totals).unwrap(),
            "1 client; in 0 B/s; out 1 B/s; 1 copy, 7 clients refused, 5.3 TB received, 10 B sent since the start"
        );
    }

    #[test]
    fn an_idle_server_has_no_log_line() {
        let idle = CopyTotals::default();
        let later = CopyTotals {
            server: status(0, 0, 10),
            ..idle
        };
        assert_eq!(later.log_line(&idle), None);
        let connected = CopyTotals {
            server: status(1, 0, 20),
            ..idle
        };
        assert_eq!(
            connected.log_line(&later).unwrap(),
            "1 client; 0 copies since the start"
        );
    }

    fn example() -> CopyTotals {
        CopyTotals {
            server: status(3, 2, 61),
            begun: 5,
            ended: 4,
            failed: 1,
            files_written: 70,
            files_sent: 80,
            bytes_received: 1 << 60,
            bytes_sent: 9,
        }
    }

    #[test]
    fn the_metrics_have_every_total() {
        let text = example().metrics();
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
            &format!("rdcp_build_info{{version=\"{version}\"}} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_metrics_have_the_form_that_prometheus_reads() {
        let text = example().metrics();
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
    fn the_file_of_metrics_is_replaced_whole_and_all_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rdcp.prom");
        for totals in [example(), CopyTotals::default()] {
            totals.write_metrics(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), totals.metrics());
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o644);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(example().write_metrics(directory.path()).is_err());
        let nowhere = directory.path().join("none/x");
        assert!(example().write_metrics(&nowhere).is_err());
    }
}
