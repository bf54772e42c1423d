//! What a source counts, and what it tells the controller.

use std::{
    collections::HashSet,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::copy::{
    job::ReportSink,
    order::{CopyNews, CopyReport, FromCopy},
};

/// The most messages that are kept before the run starts. A walk with more failures waits until the run starts.
const MAX_EARLY: usize = 4096;

/// The most paths in one [`CopyNews::Sent`].
const MAX_LISTED: usize = 512;

/// The counts of a source, and its way to the controller.
#[derive(Default)]
pub(crate) struct Tally {
    found_files: AtomicU64,
    found_bytes: AtomicU64,
    is_walked: AtomicBool,
    files: AtomicU64,
    directories: AtomicU64,
    bytes: AtomicU64,
    skipped: AtomicU64,
    resumed_bytes: AtomicU64,
    failed: AtomicU64,
    removed: AtomicU64,
    voice: Mutex<Voice>,
    opened: Condvar,
}

/// The way to the controller.
#[derive(Default)]
struct Voice {
    sink: Option<ReportSink>,
    is_closed: bool,
    early: Vec<FromCopy>,
    notes: HashSet<String>,
    listed: Vec<Vec<u8>>,
    last_walked: Option<FromCopy>,
}

impl Tally {
    /// Counts entries that the walk has found.
    pub(crate) fn found(&self, files: usize) {
        add(&self.found_files, files as u64);
    }

    /// Counts contents that the walk, or the first lane that opened the file, has found.
    pub(crate) fn found_bytes(&self, bytes: u64) {
        add(&self.found_bytes, bytes);
    }

    /// Notes that the walk is complete.
    pub(crate) fn walked(&self) {
        self.is_walked.store(true, Ordering::Relaxed);
    }

    /// Returns true if the walk is complete.
    pub(crate) fn is_walked(&self) -> bool {
        self.is_walked.load(Ordering::Relaxed)
    }

    /// Counts one entry that was sent.
    pub(crate) fn sent(&self) {
        add(&self.files, 1);
    }

    /// Counts contents that were sent.
    pub(crate) fn sent_bytes(&self, bytes: u64) {
        add(&self.bytes, bytes);
    }

    /// Counts one directory that was sent.
    pub(crate) fn sent_directory(&self) {
        add(&self.directories, 1);
    }

    /// Counts one entry that the destination keeps.
    pub(crate) fn skipped(&self) {
        add(&self.skipped, 1);
    }

    /// Counts contents that the destination had from an earlier run.
    pub(crate) fn resumed_bytes(&self, bytes: u64) {
        add(&self.resumed_bytes, bytes);
    }

    /// Counts one entry that was removed.
    pub(crate) fn removed(&self) {
        add(&self.removed, 1);
    }

    /// Reports that an entry was not copied or not removed. `path` is what the user would type. Before the run has
    /// started, this blocks once [`MAX_EARLY`] messages are waiting.
    pub(crate) fn fail(&self, path: Vec<u8>, why: String) {
        add(&self.failed, 1);
        self.say(FromCopy::News(CopyNews::Failed { path, why }));
    }

    /// Reports `text` once.
    pub(crate) fn note(&self, text: &str) {
        if self.voice().notes.insert(text.to_owned()) {
            self.say(FromCopy::News(CopyNews::Note(text.to_owned())));
        }
    }

    /// Lists the path of an entry that was sent.
    pub(crate) fn list(&self, path: Vec<u8>) {
        let mut voice = self.voice();
        voice.listed.push(path);
        if voice.listed.len() >= MAX_LISTED {
            voice.send_list();
        }
    }

    /// Sends what was counted and listed since the last call.
    pub(crate) fn tick(&self) {
        let walked = FromCopy::Walked {
            files: self.found_files.load(Ordering::Relaxed),
            bytes: self.found_bytes.load(Ordering::Relaxed),
            complete: self.is_walked.load(Ordering::Relaxed),
        };
        let mut voice = self.voice();
        voice.send_list();
        if voice.last_walked.as_ref() != Some(&walked) {
            voice.last_walked = Some(walked.clone());
            voice.send(walked);
        }
    }

    /// Sends all messages to `sink`, the waiting ones first.
    pub(crate) fn open(&self, sink: ReportSink) {
        let mut voice = self.voice();
        for message in std::mem::take(&mut voice.early) {
            sink(message);
        }
        voice.sink = Some(sink);
        self.opened.notify_all();
    }

    /// Drops all messages from now on, so that a walk never waits for a run that does not start.
    pub(crate) fn close(&self) {
        self.voice().is_closed = true;
        self.opened.notify_all();
    }

    /// Returns the counts.
    pub(crate) fn report(&self, complete: bool) -> CopyReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyReport {
            files: count(&self.files),
            directories: count(&self.directories),
            bytes: count(&self.bytes),
            skipped: count(&self.skipped),
            resumed_bytes: count(&self.resumed_bytes),
            failed: count(&self.failed),
            removed: count(&self.removed),
            complete,
        }
    }

    fn say(&self, message: FromCopy) {
        let full = |voice: &mut Voice| {
            voice.sink.is_none() && !voice.is_closed && voice.early.len() >= MAX_EARLY
        };
        let waited = self.opened.wait_while(self.voice(), full);
        waited.unwrap_or_else(PoisonError::into_inner).send(message);
    }

    fn voice(&self) -> MutexGuard<'_, Voice> {
        self.voice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Voice {
    fn send(&mut self, message: FromCopy) {
        match &self.sink {
            Some(sink) => sink(message),
            None if self.is_closed => {}
            None => self.early.push(message),
        }
    }

    fn send_list(&mut self) {
        if !self.listed.is_empty() {
            let listed = std::mem::take(&mut self.listed);
            self.send(FromCopy::News(CopyNews::Sent(listed)));
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn what_is_said_early_arrives_when_the_run_starts() {
        let tally = Tally::default();
        tally.fail(b"a".to_vec(), "is gone".to_owned());
        tally.note("once");
        tally.note("once");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&heard);
        tally.open(Arc::new(move |message| sink.lock().unwrap().push(message)));
        assert_eq!(heard.lock().unwrap().len(), 2);
        tally.list(b"x".to_vec());
        tally.tick();
        tally.tick();
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 4);
        assert_eq!(
            heard[2],
            FromCopy::News(CopyNews::Sent(vec![b"x".to_vec()]))
        );
        assert_eq!(tally.report(true).failed, 1);
    }
}
