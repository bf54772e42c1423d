//! The comparison of what rdcp and its peer have made, with the differences that the documentation names.
#![allow(
    clippy::unnecessary_debug_formatting,
    reason = "names in these trees have control characters"
)]

use std::{
    collections::BTreeSet,
    fmt::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    super::compare::{Entry, Tree, is_temporary},
    command::{Existing, Keeps, Peer, Run},
};

/// What a run was given, and what it has made.
pub(super) struct Facts<'a> {
    pub(super) run: &'a Run,
    pub(super) source: Tree,
    pub(super) before: Tree,
    pub(super) after: Tree,
    pub(super) peers: Tree,
    pub(super) status: i32,
    pub(super) peer_status: i32,
    pub(super) stderr: String,
    /// True if an earlier run was cut.
    pub(super) was_cut: bool,
}

/// A difference that nothing explains: its kind, by which a shorter scene is found, and a text.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: &'static str,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn new(kind: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

impl Facts<'_> {
    /// Returns the first difference that nothing explains.
    pub(super) fn judge(&self) -> Result<(), Fault> {
        if self.stderr.contains("panicked") {
            return Err(Fault::new("a panic", &*self.stderr));
        }
        if !matches!(self.status, 0 | 1) {
            let text = format!("status {}\n{}", self.status, self.stderr);
            return Err(Fault::new("another status than 0 and 1", text));
        }
        let conflicts = self.conflicts();
        // Names of one file that are in such a directory are missing.
        let bare = |entry: Entry| Entry {
            first_name: entry.first_name.filter(|_| conflicts.is_empty()),
            ..entry
        };
        let is_in_conflict = |path: &Path| path.ancestors().any(|at| conflicts.contains(at));
        let maps = [&self.peers.0, &self.after.0, &self.before.0];
        let paths: BTreeSet<&PathBuf> = maps.iter().flat_map(|map| map.keys()).collect();
        for path in paths {
            if is_in_conflict(path) {
                self.judge_conflict(path, &conflicts)?;
                continue;
            }
            let [expected, found] = [&self.peers, &self.after].map(|tree| {
                let entry = tree.0.get(path).map(|e| self.seen(path, e));
                entry.map(bare)
            });
            if expected == found {
                continue;
            }
            if !self.is_explained(path, expected.as_ref(), found.as_ref()) {
                let source = self.source_of(path).map(|entry| self.seen(path, entry));
                let before = self.before.0.get(path).map(|entry| self.seen(path, entry));
                let text = format!(
                    "{path:?}\n  source {source:?}\n  before {before:?}\n  peer   {expected:?}\n  rdcp   {found:?}"
                );
                return Err(Fault::new(kind_of(expected.as_ref(), found.as_ref()), text));
            }
        }
        let peer_changes_modes = !self.run.is_root && self.run.keeps == Keeps::Little;
        let may_fail = self.peer_status != 0
            || peer_changes_modes
            || !conflicts.is_empty()
            || self.keeps_another_kind();
        if self.status == 1 && !may_fail {
            return Err(Fault::new(
                "rdcp fails where its peer does not",
                &*self.stderr,
            ));
        }
        Ok(())
    }

    /// Returns true if `--no-clobber` keeps a directory where the source has something else, or the reverse. rdcp names
    /// it, as cp does; rsync is silent.
    fn keeps_another_kind(&self) -> bool {
        let differs = |(path, old): (&PathBuf, &Entry)| {
            let new = self.source_of(path);
            new.is_some_and(|new| old.is_directory() != new.is_directory())
        };
        self.run.existing == Existing::NoClobber && self.before.0.iter().any(differs)
    }

    /// Returns the paths at which a directory would have to replace something else, or something else a directory.
    ///
    /// Only `--delete` removes what is in the way.
    fn conflicts(&self) -> BTreeSet<PathBuf> {
        let mut conflicts = BTreeSet::new();
        if self.run.deletes || self.run.peer == Peer::Cp {
            return conflicts;
        }
        for (path, old) in &self.before.0 {
            if let Some(new) = self.source_of(path) {
                if old.is_directory() != new.is_directory() && self.peers.0.get(path) != Some(old) {
                    conflicts.insert(path.clone());
                }
            }
        }
        conflicts
    }

    fn judge_conflict(&self, path: &Path, conflicts: &BTreeSet<PathBuf>) -> Result<(), Fault> {
        let [before, after] = [&self.before, &self.after].map(|tree| {
            let entry = tree.0.get(path).map(|e| self.seen(path, e));
            entry.map(|entry| Entry {
                first_name: None,
                ..entry
            })
        });
        if before != after {
            let text = format!("{path:?}\n  before {before:?}\n  after {after:?}");
            return Err(Fault::new("a conflict changes something", text));
        }
        if conflicts.contains(path) && (self.status == 0 || !self.is_named(path)) {
            if self.run.existing == Existing::NoClobber {
                return Ok(());
            }
            return Err(Fault::new(
                "a conflict is not named",
                format!("{path:?}\n{}", self.stderr),
            ));
        }
        Ok(())
    }

    /// Returns the entry of the source that belongs to a path of the destination.
    fn source_of(&self, path: &Path) -> Option<&Entry> {
        self.run.tops().iter().find_map(|(source, destination)| {
            let below = path.strip_prefix(destination).ok()?;
            let at = if below.as_os_str().is_empty() {
                PathBuf::from(source)
            } else {
                Path::new(source).join(below)
            };
            self.source.0.get(&at)
        })
    }

    /// Returns what counts of an entry.
    fn seen(&self, path: &Path, entry: &Entry) -> Entry {
        let mut entry = entry.clone();
        entry.allocated = 0;
        let is_of_source = self.source_of(path).is_some();
        if entry.is_directory() && !is_of_source {
            // The time of a directory in which something has changed.
            entry.modified = (0, 0);
        }
        // In directories that a run has made, their owner may write until the run ends. The next one does not know them.
        if self.was_cut && entry.is_directory() && self.run.keeps == Keeps::Little {
            entry.mode |= 0o700;
        }
        if self.run.keeps == Keeps::Little && is_of_source {
            // Only -a keeps these bits. A directory may inherit the set-group-ID bit, which other tests look at.
            if entry.kind != "file" {
                entry.mode &= 0o777;
            }
            entry.modified = (0, 0);
            entry.first_name = None;
            entry
                .attributes
                .retain(|name, _| name.starts_with(b"system."));
            if !self.run.is_root || self.run.peer == Peer::Rsync {
                entry.owners = (0, 0);
            }
        }
        entry
    }

    /// Returns true if the documentation names a difference, or if rdcp was more successful than its peer.
    fn is_explained(&self, path: &Path, expected: Option<&Entry>, found: Option<&Entry>) -> bool {
        let run = self.run;
        let before = self.before.0.get(path).map(|e| self.seen(path, e));
        let is_untouched = found == before.as_ref();
        let Some(source) = self.source_of(path) else {
            let bare = |entry: &Entry| Entry {
                first_name: None,
                ..entry.clone()
            };
            let is_untouched = found.map(bare) == before.as_ref().map(bare);
            // rsync makes room in directories for what it cannot write then, and changes modes before it removes a file.
            // What other runs of rdcp have left stays for a day.
            if is_temporary(path) && self.status == 1 && !run.deletes {
                return true;
            }
            return is_untouched && (!run.deletes || path.ancestors().any(is_temporary));
        };
        // rsync changes the mode of a directory that forbids writing also if it does not keep modes. cp does not.
        let peer_changes_modes =
            !run.is_root && run.keeps == Keeps::Little && run.peer == Peer::Rsync;
        let may_fail = self.peer_status != 0 || peer_changes_modes;
        // A directory that could not be removed has another time, because some of its entries could.
        let is_left = found.is_some_and(Entry::is_directory) && !source.is_directory();
        let is_refused = is_untouched || found.is_none() || is_left;
        if may_fail && self.status == 1 && self.is_named(path) && is_refused {
            return true;
        }
        let Some(found) = found else {
            return false;
        };
        if self.peer_status != 0 && source.has_contents_of(found) {
            return true;
        }
        let source = self.seen(path, source);
        // rsync and cp do not keep some combinations of modes and ACLs.
        if run.keeps == Keeps::All
            && *found == source
            && expected.is_some_and(|expected| expected.has_contents_of(&source))
        {
            return true;
        }
        // Without root, bits for a user or group that could not be kept are left out.
        if !run.is_root && found.mode == source.mode & !0o6000 && found.owners != source.owners {
            return expected.is_some_and(|expected| expected.has_contents_of(found));
        }
        if before.is_none() {
            return false;
        }
        // The two scenes are not made at the same time, so directories that are left out differ in theirs.
        if !run.patterns.is_empty() && is_untouched && found.is_directory() {
            return expected.is_some_and(Entry::is_directory);
        }
        // rsync gives a FIFO, a socket or a device the mode of what it replaces.
        if run.keeps == Keeps::Little
            && !matches!(found.kind, "file" | "directory")
            && source.has_contents_of(found)
        {
            return true;
        }
        // A file that is replaced loses its set-user-ID and set-group-ID bits, which cp and rsync leave on the new contents.
        if run.keeps == Keeps::Little
            && expected.is_some_and(|expected| {
                let mode = expected.mode & !0o6000;
                *found
                    == Entry {
                        mode,
                        ..expected.clone()
                    }
            })
        {
            return true;
        }
        // A pattern for directories protects all that has the name of a directory of the source.
        if !run.patterns.is_empty() && expected.is_none() {
            return is_untouched;
        }
        match run.existing {
            // rsync compares whole seconds, with one of them to spare, and only those of two files.
            Existing::Update => {
                let original = self.before.0.get(path).expect("it was there");
                let new = self.source_of(path).expect("it is there");
                let is_close = original.modified.0.abs_diff(new.modified.0) < 2
                    || original.kind != "file"
                    || new.kind != "file";
                if is_close && new.modified > original.modified {
                    source.has_contents_of(found)
                } else {
                    is_close && is_untouched
                }
            }
            // Tests of their own look at the metadata of what is skipped.
            Existing::SkipSame => is_untouched && source.has_contents_of(found),
            _ => false,
        }
    }

    /// Returns true if a message names the path or a directory above it.
    fn is_named(&self, path: &Path) -> bool {
        let mut above = path.ancestors().filter(|at| !at.as_os_str().is_empty());
        above.any(|at| {
            let mut names = vec![Path::new("d").join(at)];
            for (source, destination) in self.run.tops() {
                if let Ok(below) = at.strip_prefix(destination) {
                    names.push(Path::new("s").join(source).join(below));
                }
            }
            names.iter().any(|name| {
                let name = shown(name);
                let name = name.trim_end_matches('/');
                self.stderr.contains(&format!("{name}: "))
                    || self.stderr.contains(&format!("{name}\n"))
            })
        })
    }
}

/// Returns a path as rdcp prints it.
fn shown(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns the kind of a difference.
fn kind_of(expected: Option<&Entry>, found: Option<&Entry>) -> &'static str {
    let (Some(expected), Some(found)) = (expected, found) else {
        return if found.is_none() {
            "an entry is missing"
        } else {
            "an entry is there that the peer does not have"
        };
    };
    match () {
        () if expected.kind != found.kind => "another kind",
        () if !expected.has_contents_of(found) => "other contents",
        () if expected.mode != found.mode => "another mode",
        () if expected.owners != found.owners => "other owners",
        () if expected.modified != found.modified => "another time",
        () if expected.first_name != found.first_name => "other hard links",
        () => "other attributes",
    }
}
