//! The state of a source, which its threads share: what it counts and reports to the controller, and the rate of all
//! lanes together.

use std::{
    collections::{HashMap, HashSet},
    num::NonZero,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::available_parallelism,
};

use rustix::{fs::Stat, io::Errno};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    jobs::{SourceFolder, WorkBoard},
    removal::SentSpool,
};
use crate::carry::RateLimit;
use crate::copy::{
    budget::{ListBudget, PATH_ENTRY_BYTES},
    job::ReportSink,
    metadata::link_count,
    order::{CopyNews, CopyOptions, CopyReport, ExistingFiles, FromCopy},
    path::{EntryName, RelativePath},
    record::RecordError,
};

pub(crate) struct SourceShared {
    pub(crate) options: CopyOptions,
    /// The counts, and the way to the controller.
    pub(crate) tally: Tally,
    /// The queue of the lanes.
    pub(crate) board: WorkBoard,
    /// Files that have several names.
    pub(crate) links: HardLinks,
    /// The limit of `--bwlimit`.
    pub(crate) limit: Option<RateLimit>,
    /// The list for `--remove-source-files`.
    pub(crate) spool: Option<SentSpool>,
    /// True if several lanes send one large file.
    pub(crate) shares_files: bool,
    large_files: AtomicU64,
    /// Held until no thread has this state any more: the walk, and the one that removes source files, are waited for by
    /// no future.
    _threads: TaskTrackerToken,
}

/// The number of processors up to which one lane sends a large file, unless the user has chosen the lanes. The
/// destination's kernel lets one thread at a time write to a file, and a thread that waits for that takes the processor
/// that the network needs: with two processors, two lanes took 1.05 to 1.4 times as long as one. Different files and
/// folders have no such limit.
const FEW_PROCESSORS: usize = 2;

/// Returns true if several lanes send one large file, with lanes that the user has chosen or not, on so many
/// processors.
fn shares_files(has_chosen_lanes: bool, processors: Option<NonZero<usize>>) -> bool {
    has_chosen_lanes || processors.is_some_and(|count| count.get() > FEW_PROCESSORS)
}

impl SourceShared {
    /// Returns what the threads of a source share that has sent nothing.
    pub(super) fn new(
        options: CopyOptions,
        spool: Option<SentSpool>,
        threads: TaskTrackerToken,
    ) -> Self {
        Self {
            tally: Tally::default(),
            board: WorkBoard::default(),
            links: HardLinks::default(),
            limit: options.bytes_per_second.map(RateLimit::new),
            spool,
            shares_files: shares_files(options.chosen_lanes, available_parallelism().ok()),
            large_files: AtomicU64::new(0),
            _threads: threads,
            options,
        }
    }

    /// Returns true if the destination is asked for every entry.
    pub(crate) fn asks(&self) -> bool {
        let options = &self.options;
        options.existing != ExistingFiles::Replace || options.resume || options.dry_run
    }

    /// Returns true if the destination is asked with the metadata of every entry: those that it skips get them, or
    /// would in a dry run.
    pub(crate) fn asks_with_metadata(&self) -> bool {
        let options = &self.options;
        let may_skip_same = match options.existing {
            ExistingFiles::Keep => false,
            ExistingFiles::ReplaceOlder | ExistingFiles::ReplaceDifferent => true,
            ExistingFiles::Replace => options.resume,
        };
        options.archive && may_skip_same
    }

    pub(crate) fn next_large_id(&self) -> u64 {
        self.large_files.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts an entry that was sent, and lists it. `is_whole` is false for one that changed meanwhile: it is not
    /// removed.
    pub(crate) fn sent(
        &self,
        folder: &SourceFolder,
        name: &EntryName,
        stat: &Stat,
        is_whole: bool,
    ) {
        self.tally.sent();
        if let Some(spool) = self.spool.as_ref().filter(|_| is_whole) {
            spool.add(folder, name, stat);
        }
        if self.options.list {
            self.tally.list(folder.path.join(name).into());
        }
    }
}

/// The first name of each file that has further names.
#[derive(Default)]
pub(crate) struct HardLinks {
    table: Mutex<HashMap<(u64, u64), FirstName>>,
    /// The memory for the table, if clients may have made the files.
    budget: OnceLock<Arc<ListBudget>>,
    were_left_out: AtomicBool,
}

struct FirstName {
    path: RelativePath,
    /// The number of names that were not seen yet.
    missing: u64,
}

impl HardLinks {
    /// Keeps no more names than the budget allows. Further files are sent under each of their names.
    pub(crate) fn limit(&self, budget: Arc<ListBudget>) {
        let _ = self.budget.set(budget);
    }

    /// Returns true if a name was not kept, because there was no memory for it.
    pub(crate) fn were_left_out(&self) -> bool {
        self.were_left_out.load(Ordering::Relaxed)
    }

    /// Returns the name under which the file is sent, if it is another one than `path`. The first caller with a file
    /// sends the file.
    ///
    /// A file is forgotten when all of its names were seen, so the table does not grow with links within the tree.
    pub(crate) fn first_name(&self, stat: &Stat, path: &RelativePath) -> Option<RelativePath> {
        let identity = (stat.st_dev, stat.st_ino);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = self.budget.get();
        let bytes = |path: &RelativePath| path.as_bytes().len() + PATH_ENTRY_BYTES;
        let Some(first) = table.get_mut(&identity) else {
            if budget.is_some_and(|budget| !budget.take_spare(bytes(path))) {
                self.were_left_out.store(true, Ordering::Relaxed);
                return None;
            }
            let first = FirstName {
                path: path.clone(),
                missing: link_count(stat) - 1,
            };
            table.insert(identity, first);
            return None;
        };
        first.missing -= 1;
        let name = first.path.clone();
        if first.missing == 0 {
            table.remove(&identity);
            if let Some(budget) = budget {
                budget.give_back(bytes(&name));
            }
        }
        (name != *path).then_some(name)
    }
}

/// Returns the sentence for an entry whose opening or reading has failed.
pub(super) fn unreadable(error: Errno) -> String {
    match error {
        Errno::NOENT => "vanished before it was copied".to_owned(),
        Errno::LOOP | Errno::NXIO | Errno::NOTDIR => {
            "was replaced by something else while it was copied".to_owned()
        }
        error => format!("cannot be read: {error}"),
    }
}

/// Returns the sentence for metadata that do not fit into a record.
pub(super) fn too_long(error: &RecordError) -> String {
    format!("its metadata cannot be sent: {error}")
}

/// The bytes of messages that are kept before the run starts. A walk with more failures waits until the run starts.
const EARLY_BYTES: usize = 256 << 10;

/// The most paths in one [`CopyNews::Sent`].
const MAX_LISTED: usize = 512;

/// The bytes of paths from which a [`CopyNews::Sent`] is full.
const LISTED_BYTES: usize = 64 << 10;

/// The counts of a source, and its way to the controller.
#[derive(Default)]
pub(crate) struct Tally {
    found_files: AtomicU64,
    sized_files: AtomicU64,
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
    /// Cancelled when the run ends early.
    stop: CancellationToken,
    is_closed: bool,
    early: Vec<FromCopy>,
    early_bytes: usize,
    notes: HashSet<String>,
    listed: Vec<Vec<u8>>,
    listed_bytes: usize,
    last_walked: Option<FromCopy>,
}

impl Tally {
    /// Counts entries that the walk has found.
    pub(crate) fn found(&self, files: usize) {
        add(&self.found_files, files as u64);
    }

    /// Counts entries whose sizes are known, and their contents.
    pub(crate) fn sized(&self, files: usize, bytes: u64) {
        add(&self.sized_files, files as u64);
        add(&self.found_bytes, bytes);
    }

    /// Counts contents that the first lane has found that opened the file.
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

    pub(crate) fn sent_directory(&self) {
        add(&self.directories, 1);
    }

    /// Takes an entry that is not sent from those that the walk has found.
    pub(crate) fn not_wanted(&self) {
        self.found_files.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one entry that the destination keeps.
    pub(crate) fn skipped(&self) {
        add(&self.skipped, 1);
    }

    /// Counts contents that the destination had from an earlier run.
    pub(crate) fn resumed_bytes(&self, bytes: u64) {
        add(&self.resumed_bytes, bytes);
        self.found_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts one entry that was removed.
    pub(crate) fn removed(&self) {
        add(&self.removed, 1);
    }

    /// Reports that an entry was not copied or not removed. `path` is what the user would type. Blocks this thread while
    /// there is no room for more messages: before the run has started, once [`EARLY_BYTES`] of messages are waiting.
    pub(crate) fn fail(&self, path: Vec<u8>, why: String) {
        add(&self.failed, 1);
        self.say(FromCopy::News(CopyNews::Failed { path, why }));
    }

    /// Reports `text` once.
    pub(crate) fn note(&self, text: &str) {
        let mut voice = self.voice();
        let is_new = voice.notes.insert(text.to_owned());
        drop(voice);
        if is_new {
            self.say(FromCopy::News(CopyNews::Note(text.to_owned())));
        }
    }

    /// Reports a text, without waiting.
    pub(crate) fn note_now(&self, text: &str) {
        self.voice()
            .send(FromCopy::News(CopyNews::Note(text.to_owned())));
    }

    /// Lists the path of an entry that was sent. Blocks this thread while there is no room for a list that is full.
    pub(crate) fn list(&self, path: Vec<u8>) {
        let mut voice = self.voice();
        voice.listed_bytes += path.len();
        voice.listed.push(path);
        let is_full = voice.listed.len() >= MAX_LISTED || voice.listed_bytes >= LISTED_BYTES;
        let listed = is_full.then(|| voice.take_list());
        drop(voice);
        if let Some(listed) = listed {
            self.say(FromCopy::News(CopyNews::Sent(listed)));
        }
    }

    /// Sends what was counted since the last call, and what was listed if there is room for it. Does not wait.
    pub(crate) fn tick(&self) {
        let walked = FromCopy::Walked {
            files: self.found_files.load(Ordering::Relaxed),
            sized: self.sized_files.load(Ordering::Relaxed),
            bytes: self.found_bytes.load(Ordering::Relaxed),
            complete: self.is_walked.load(Ordering::Relaxed),
        };
        let mut voice = self.voice();
        if voice.sink.as_ref().is_some_and(|sink| sink.has_room()) {
            voice.send_list();
        }
        if voice.last_walked.as_ref() != Some(&walked) {
            voice.last_walked = Some(walked.clone());
            voice.send(walked);
        }
    }

    /// Sends all messages to `sink`, the waiting ones first. `stop` is cancelled when none waits for room any more.
    pub(crate) fn open(&self, sink: ReportSink, stop: CancellationToken) {
        let mut voice = self.voice();
        for message in std::mem::take(&mut voice.early) {
            sink.send(message);
        }
        voice.sink = Some(sink);
        voice.stop = stop;
        self.opened.notify_all();
    }

    /// Sends what was listed and not sent yet, less than a full list: the run has come to its end. Does not wait.
    pub(crate) fn finish_list(&self) {
        self.voice().send_list();
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
            voice.sink.is_none() && !voice.is_closed && voice.early_bytes >= EARLY_BYTES
        };
        let waited = self.opened.wait_while(self.voice(), full);
        let mut voice = waited.unwrap_or_else(PoisonError::into_inner);
        match voice.sink.clone() {
            None => voice.send(message),
            Some(sink) => {
                let stop = voice.stop.clone();
                // Others must not wait for the lock: some of them never wait.
                drop(voice);
                sink.send_when_room(message, &stop);
            }
        }
    }

    fn voice(&self) -> MutexGuard<'_, Voice> {
        self.voice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Voice {
    fn send(&mut self, message: FromCopy) {
        match &self.sink {
            Some(sink) => sink.send(message),
            None if self.is_closed => {}
            None => {
                self.early_bytes += size_of::<FromCopy>();
                if let FromCopy::News(CopyNews::Failed { path, why }) = &message {
                    self.early_bytes += path.len() + why.len();
                }
                self.early.push(message);
            }
        }
    }

    fn take_list(&mut self) -> Vec<Vec<u8>> {
        self.listed_bytes = 0;
        std::mem::take(&mut self.listed)
    }

    fn send_list(&mut self) {
        if !self.listed.is_empty() {
            let listed = self.take_list();
            self.send(FromCopy::News(CopyNews::Sent(listed)));
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use rustix::fs::{AtFlags, CWD, statat};

    use super::*;

    #[test]
    fn one_lane_sends_a_file_on_few_processors_unless_the_user_has_chosen_lanes() {
        for (processors, is_shared) in [(1, false), (2, false), (3, true), (64, true)] {
            assert_eq!(shares_files(false, NonZero::new(processors)), is_shared);
            assert!(shares_files(true, NonZero::new(processors)));
        }
        assert!(!shares_files(false, None));
    }

    #[test]
    fn what_is_said_early_arrives_when_the_run_starts() {
        let tally = Tally::default();
        tally.fail(b"a".to_vec(), "is gone".to_owned());
        tally.note("once");
        tally.note("once");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&heard);
        let sink = Arc::new(move |message: FromCopy| sink.lock().unwrap().push(message));
        tally.open(sink, CancellationToken::new());
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

    #[test]
    fn without_memory_every_name_is_a_file_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let links = HardLinks::default();
        links.limit(Arc::new(ListBudget::of_server(2 * (PATH_ENTRY_BYTES + 2))));
        let path = |name: String| RelativePath::try_from(name.into_bytes()).unwrap();
        let firsts = (0..3).map(|number| {
            let (first, second) = (place.path().join("f"), place.path().join("g"));
            fs::write(&first, b"x").unwrap();
            fs::hard_link(&first, &second).unwrap();
            let stat = statat(CWD, &first, AtFlags::empty()).unwrap();
            let named = links.first_name(&stat, &path(format!("a{number}")));
            assert_eq!(named, None);
            // Only the first fits into half of the budget.
            let second = links.first_name(&stat, &path(format!("b{number}")));
            fs::rename(&first, place.path().join(format!("kept{number}"))).unwrap();
            fs::remove_file(place.path().join("g")).unwrap();
            second
        });
        let firsts: Vec<_> = firsts.collect();
        assert!(
            firsts.iter().all(Option::is_some),
            "each is given back: {firsts:?}"
        );
        assert!(!links.were_left_out());
        let stat = statat(CWD, place.path(), AtFlags::empty()).unwrap();
        for name in ["a", "b"] {
            let inode = stat.st_ino + u64::from(name == "b");
            let mut stat = stat;
            stat.st_ino = inode;
            assert_eq!(links.first_name(&stat, &path(name.to_owned())), None);
        }
        assert!(links.were_left_out());
    }

    #[test]
    fn the_second_name_is_a_link_and_the_last_one_is_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let first = place.path().join("first");
        fs::write(&first, b"x").unwrap();
        fs::hard_link(&first, place.path().join("second")).unwrap();
        let stat = statat(CWD, &first, AtFlags::empty()).unwrap();
        let path = |name: &str| RelativePath::try_from(name.as_bytes().to_vec()).unwrap();
        let links = HardLinks::default();
        assert_eq!(links.first_name(&stat, &path("a")), None);
        assert_eq!(links.first_name(&stat, &path("b")), Some(path("a")));
        assert!(links.table.lock().unwrap().is_empty());
    }
}
