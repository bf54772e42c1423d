//! What the copies of a server have moved and done so far.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::server_totals::ServerTotals;
use crate::{
    Direction, Stream, Watch,
    cli::rdcp::serve::{outcome::ClientOutcome, served_copies::ServedSide},
};

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
