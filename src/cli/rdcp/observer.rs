//! Passes what the agents of a copy report on to the user: failures, notes, lists, digests, and the progress line.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    listing::{Listing, push_digest_line, shown},
    report::CopyLog,
};
use crate::{
    cli::shared::{message::Console, progress::FilesProgress},
    copy::{
        order::{CopyNews, CopyOptions},
        supervised::{CopyState, CopyWork},
    },
};

/// Passes what the agents of one copy report on to the user.
pub(super) struct CopyObserver {
    pub(super) console: Console,
    pub(super) shared: SharedProgress,
    /// Where digests and the paths of a dry run go.
    pub(super) listing: Option<Listing>,
    /// The names of the two hosts in messages.
    pub(super) hosts: [String; 2],
    /// The names of the two agents' work in messages.
    pub(super) sites: [String; 2],
    pub(super) options: CopyOptions,
}

/// What the copies of a run have reported so far. Clones share it.
#[derive(Clone, Default)]
pub(super) struct SharedProgress(Arc<Mutex<ReportedProgress>>);

/// What the copies of a run have reported so far.
#[derive(Default)]
pub(super) struct ReportedProgress {
    /// What the report of `--json` contains beside the totals.
    pub(super) log: CopyLog,
    /// How far the current copy is.
    pub(super) state: CopyState,
    /// What the copies before it have done.
    done: CopyState,
}

impl SharedProgress {
    /// Returns what was reported so far, and keeps other threads out.
    pub(super) fn lock(&self) -> MutexGuard<'_, ReportedProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the current copy, which has ended, to what is done. Returns how far it came.
    pub(super) fn end_copy(&self) -> CopyState {
        let mut shared = self.lock();
        let state = std::mem::take(&mut shared.state);
        shared.done.files += state.files;
        shared.done.bytes += state.bytes;
        shared.done.found_files += state.found_files;
        shared.done.found_bytes += state.found_bytes;
        state
    }

    /// Returns what the progress line shows.
    pub(super) fn look(&self) -> FilesProgress {
        let ReportedProgress { state, done, .. } = &*self.lock();
        let found = done.found_files + state.found_files;
        // The plus says that the walk goes on.
        let more = if state.is_walked { "" } else { "+" };
        FilesProgress {
            counts: format!("{} of {found}{more} files", done.files + state.files),
            bytes: done.bytes + state.bytes,
            total_bytes: done.found_bytes + state.found_bytes,
            current: shown(&state.current),
        }
    }
}

impl CopyObserver {
    /// Handles the work after an event of the supervisor. Does not wait.
    pub(super) fn observe(&self, work: &mut CopyWork) {
        for (agent, news) in work.take_news() {
            self.tell(agent, news);
        }
        self.shared.lock().state.clone_from(work.state());
    }

    fn tell(&self, agent: usize, news: CopyNews) {
        match news {
            CopyNews::Failed { path, why } => {
                let host = &self.hosts[agent];
                self.shared.lock().log.failed(host, &path, &why);
                let text = format!("{}: {why}", shown(&path));
                self.console.notice(|console| console.error_on(host, &text));
            }
            CopyNews::Note(text) => {
                let text = format!("{}: {text}", self.sites[agent]);
                self.console.notice(|console| console.note(&text));
                self.shared.lock().log.note(text);
            }
            CopyNews::Sent(paths) => self.list("copy ", "", &paths),
            CopyNews::Removed(paths) => self.list("remove ", "removed ", &paths),
            CopyNews::Changed(paths) => self.list("change ", "changed ", &paths),
            CopyNews::Digests(digests) => {
                let mut lines = Vec::new();
                for (digest, path) in digests {
                    push_digest_line(&mut lines, &digest, &path);
                }
                self.print(lines);
            }
        }
    }

    /// Prints paths: those of a dry run to stdout, after `would`, and those of `-v` to stderr, after `did`.
    fn list(&self, would: &str, did: &str, paths: &[Vec<u8>]) {
        let line = |verb: &str, path: &Vec<u8>| format!("{verb}{}", shown(path));
        if self.options.dry_run {
            let lines = paths.iter().map(|path| line(would, path) + "\n");
            self.print(lines.collect::<String>().into_bytes());
        } else if self.options.list && !paths.is_empty() {
            let lines: Vec<_> = paths.iter().map(|path| line(did, path)).collect();
            self.console.notice(|console| console.lines(&lines));
        }
    }

    fn print(&self, lines: Vec<u8>) {
        if let Some(listing) = &self.listing {
            listing.push(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_counts_all_copies_of_a_run() {
        let shared = SharedProgress::default();
        let state = |files, found_files, is_walked| CopyState {
            files,
            found_files,
            bytes: files * 10,
            found_bytes: found_files * 10,
            is_walked,
            current: b"d/\x1bx".to_vec(),
        };
        shared.lock().state = state(3, 4, true);
        assert_eq!(shared.end_copy().files, 3);
        shared.lock().state = state(1, 5, false);
        let look = shared.look();
        assert_eq!(look.counts, "4 of 9+ files");
        assert_eq!((look.bytes, look.total_bytes), (40, 90));
        assert_eq!(look.current, "d/\\u{1b}x");
    }
}
