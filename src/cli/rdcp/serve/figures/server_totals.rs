//! What a server and its copies have done since its start, and the line for the log.

use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::rates::{RATE_WINDOWS, RatesNow};
use crate::{
    Direction, Stream, Watch,
    cli::{
        rdcp::serve::{client::ClientOutcome, served_copies::ServedSide},
        shared::report::{amount, counted, decimal},
    },
};

/// What a server has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::cli::rdcp::serve) struct ServerTotals {
    /// Copies that have begun.
    pub(in crate::cli::rdcp::serve) copies_begun: u64,
    /// Copies that have ended, with those that failed.
    pub(in crate::cli::rdcp::serve) copies_ended: u64,
    /// Copies that failed.
    pub(in crate::cli::rdcp::serve) copies_failed: u64,
    /// Connections that were refused: with an unknown key, or from strangers.
    pub(in crate::cli::rdcp::serve) clients_refused: u64,
    /// Clients that are connected now.
    pub(in crate::cli::rdcp::serve) clients_now: u64,
    /// Files that clients have sent and the server has written.
    pub(in crate::cli::rdcp::serve) files_written: u64,
    /// Files that the server has sent to clients.
    pub(in crate::cli::rdcp::serve) files_sent: u64,
    /// Bytes that clients have sent.
    pub(in crate::cli::rdcp::serve) bytes_received: u64,
    /// Bytes that the server has sent to clients.
    pub(in crate::cli::rdcp::serve) bytes_sent: u64,
    /// The time since the start.
    pub(in crate::cli::rdcp::serve) uptime: Duration,
}

impl ServerTotals {
    /// Returns the line for the log. A direction that has never moved a byte is left out.
    pub(in crate::cli::rdcp::serve) fn log_line(&self, rates: &RatesNow) -> String {
        let mut line = counted(self.clients_now, "client", "clients");
        let directions = [
            ("in", self.bytes_received, &rates.received),
            ("out", self.bytes_sent, &rates.sent),
        ];
        for (word, _, rates) in directions.iter().filter(|(_, bytes, _)| *bytes > 0) {
            let _ = write!(line, "; {word} {}", in_windows(*rates));
        }
        line + "; " + &self.since_start()
    }

    /// Returns what the server has done since its start, in words.
    pub(in crate::cli::rdcp::serve) fn since_start(&self) -> String {
        let mut line = counted(self.copies_ended, "copy", "copies");
        if self.copies_failed > 0 {
            let _ = write!(line, ", {} failed", self.copies_failed);
        }
        if self.clients_refused > 0 {
            let refused = counted(self.clients_refused, "client", "clients");
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
}

/// Returns a window in words.
fn window_name(window: Duration) -> String {
    match window.as_secs() {
        seconds if seconds < 60 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

/// Formats the rates of a direction over all windows.
fn in_windows(rates: &[f64]) -> String {
    let rates = RATE_WINDOWS.into_iter().zip(rates);
    let parts: Vec<_> = rates
        .map(|(window, rate)| format!("{}/s ({})", rate_amount(*rate), window_name(window)))
        .collect();
    parts.join(", ")
}

/// Formats the bytes of a second; those below 1 kB without decimals.
fn rate_amount(bytes: f64) -> String {
    if bytes < 999.5 {
        format!("{bytes:.0} B")
    } else {
        decimal(bytes)
    }
}

/// Counts what the copies of a server do.
pub(in crate::cli::rdcp::serve) struct ServerTally {
    started: Instant,
    counts: Mutex<ServerCounts>,
}

#[derive(Default)]
struct ServerCounts {
    /// What has ended; the counts of running copies are not in it.
    ended: ServerTotals,
    next: u64,
    running: HashMap<u64, Vec<Watch>>,
}

impl ServerTally {
    /// Returns the tally of a server that has just started.
    pub(in crate::cli::rdcp::serve) fn new() -> Self {
        Self {
            started: Instant::now(),
            counts: Mutex::default(),
        }
    }

    /// Counts a client that has connected. Returns its number.
    pub(in crate::cli::rdcp::serve) fn client_came(&self) -> u64 {
        let mut counts = self.lock();
        counts.next += 1;
        let number = counts.next;
        counts.running.insert(number, Vec::new());
        number
    }

    /// Counts the bytes of a lane of a client.
    pub(in crate::cli::rdcp::serve) fn connected(&self, client: u64, stream: &Stream) {
        // The two-way stream carries questions and no contents.
        if stream.direction() == Direction::Both {
            return;
        }
        let counts = &mut *self.lock();
        let watches = counts.running.entry(client).or_default();
        if watches.is_empty() {
            // A copy begins with its first lane.
            counts.ended.copies_begun += 1;
        }
        watches.push(stream.watch());
    }

    /// Counts the end of a client.
    pub(in crate::cli::rdcp::serve) fn client_left(&self, client: u64, end: &ClientOutcome) {
        let mut counts = self.lock();
        let watches = counts.running.remove(&client).unwrap_or_default();
        let ended = &mut counts.ended;
        add_bytes(ended, &watches);
        if !watches.is_empty() {
            ended.copies_ended += 1;
        }
        if let Some(report) = &end.report {
            let files = match end.side {
                ServedSide::Source => &mut ended.files_sent,
                ServedSide::Destination => &mut ended.files_written,
            };
            *files += report.files;
        }
        if end.failure.is_some() {
            ended.copies_failed += 1;
        }
    }

    /// Returns everything so far. `refused` is the number of connections that were refused.
    pub(in crate::cli::rdcp::serve) fn totals(&self, refused: u64) -> ServerTotals {
        let counts = self.lock();
        let mut totals = counts.ended;
        for watches in counts.running.values() {
            add_bytes(&mut totals, watches);
        }
        totals.clients_now = counts.running.len() as u64;
        totals.clients_refused = refused;
        totals.uptime = self.started.elapsed();
        totals
    }

    fn lock(&self) -> MutexGuard<'_, ServerCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add_bytes(totals: &mut ServerTotals, watches: &[Watch]) {
    for stats in watches.iter().map(Watch::stats) {
        totals.bytes_received += stats.bytes_received;
        totals.bytes_sent += stats.bytes_sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_line_says_what_the_server_does() {
        let totals = ServerTotals {
            copies_begun: 123,
            copies_ended: 120,
            copies_failed: 2,
            clients_now: 3,
            bytes_received: 5_300_000_000_000,
            ..ServerTotals::default()
        };
        let rates = RatesNow {
            received: [1.2e9, 9e8, 0.2],
            ..RatesNow::default()
        };
        assert_eq!(
            totals.log_line(&rates),
            "3 clients; in 1.2 GB/s (10 s), 900.0 MB/s (1 min), 0 B/s (5 min); 120 copies, 2 failed, 5.3 TB received since the start"
        );
        let totals = ServerTotals {
            bytes_sent: 10,
            clients_now: 1,
            clients_refused: 7,
            copies_failed: 0,
            copies_ended: 1,
            ..totals
        };
        assert_eq!(
            totals.log_line(&rates),
            "1 client; in 1.2 GB/s (10 s), 900.0 MB/s (1 min), 0 B/s (5 min); out 0 B/s (10 s), 0 B/s (1 min), 0 B/s (5 min); 1 copy, 7 clients refused, 5.3 TB received, 10 B sent since the start"
        );
    }

    #[test]
    fn the_log_line_of_an_idle_server_is_short() {
        assert_eq!(
            ServerTotals::default().log_line(&RatesNow::default()),
            "0 clients; 0 copies since the start"
        );
    }
}
