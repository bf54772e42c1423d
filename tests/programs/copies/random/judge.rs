//! The comparison of what rdcp and its peer have made, with the differences that the documentation names.
#![allow(
    clippy::unnecessary_debug_formatting,
    reason = "names in these trees have control characters"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    super::compare::{Entry, Tree, is_temporary},
    command::{Existing, Keeps, Peer, Run},
    scene::USER,
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
            let is_explained = if self.is_below_two(path) {
                self.is_of_one_source(path, found.as_ref())
            } else {
                self.is_explained(path, expected.as_ref(), found.as_ref())
            };
            if !is_explained {
                let source = self.source_of(path).map(|entry| self.seen(path, entry));
                let before = self.before.0.get(path).map(|entry| self.seen(path, entry));
                let text = format!(
                    "{path:?}\n  source {source:?}\n  before {before:?}\n  peer   {expected:?}\n  rdcp   {found:?}"
                );
                return Err(Fault::new(kind_of(expected.as_ref(), found.as_ref()), text));
            }
        }
        let may_fail = self.peer_status != 0
            || self.peer_changes_modes()
            || !conflicts.is_empty()
            || self.keeps_another_kind()
            || self.may_refuse()
            || self.source_has_two();
        if self.status == 1 && !may_fail {
            return Err(Fault::new(
                "rdcp fails where its peer does not",
                &*self.stderr,
            ));
        }
        Ok(())
    }

    /// Returns true if rdcp names a reason that its peer does not have, and that the documentation names.
    fn may_refuse(&self) -> bool {
        let reasons = [
            "--exclude protects",
            "cannot make the hard link: its file was not written",
            "is a symbolic link, which a server does not follow",
        ];
        reasons.iter().any(|why| self.stderr.contains(why))
    }

    /// Returns true if a directory of the destination that was at this path, above or below it lacked rights of its
    /// owner.
    fn was_locked(&self, path: &Path) -> bool {
        self.before.0.iter().any(|(at, entry)| {
            let is_near = at.starts_with(path) || path.starts_with(at);
            is_near && entry.is_directory() && entry.mode & 0o700 != 0o700
        })
    }

    /// Returns true if a directory is kept where the source has something else, or the reverse, which rdcp names and a
    /// peer does not.
    fn keeps_another_kind(&self) -> bool {
        let differs = |(path, old): (&PathBuf, &Entry)| {
            let mut new = self.sources_of(path).into_iter();
            new.any(|new| old.is_directory() != new.is_directory())
        };
        let is_silent = match self.run.existing {
            Existing::NoClobber => true,
            // cp looks at the times first.
            Existing::Update => self.run.peer == Peer::Cp,
            Existing::Replace | Existing::SkipSame => false,
        };
        is_silent && self.before.0.iter().any(differs)
    }

    /// Returns the paths at which a directory would have to replace something else, or something else a directory.
    ///
    /// Only `--delete` removes what is in the way.
    fn conflicts(&self) -> BTreeSet<PathBuf> {
        let mut conflicts = BTreeSet::new();
        if self.run.deletes || self.run.peer == Peer::Cp {
            // cp names them as rdcp does.
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
            return Err(Fault::new(
                "a conflict is not named",
                format!("{path:?}\n{}", self.stderr),
            ));
        }
        Ok(())
    }

    /// Returns the paths of the source that belong to a path of the destination.
    fn source_paths(&self, path: &Path) -> Vec<PathBuf> {
        let find = |(source, destination): (&str, &str)| {
            let below = path.strip_prefix(destination).ok()?;
            Some(if below.as_os_str().is_empty() {
                PathBuf::from(source)
            } else {
                Path::new(source).join(below)
            })
        };
        self.run.tops().into_iter().filter_map(find).collect()
    }

    /// Returns the entries of the source that belong to a path of the destination.
    fn sources_of(&self, path: &Path) -> Vec<&Entry> {
        let paths = self.source_paths(path);
        paths
            .iter()
            .filter_map(|at| self.source.0.get(at))
            .collect()
    }

    /// Returns true if two entries of the destination are of one file of the source.
    fn are_links_at_source(&self, one: &Path, two: &Path) -> bool {
        let files = |path: &Path| -> Vec<PathBuf> {
            let paths = self.source_paths(path).into_iter();
            let first = |path| {
                let entry: &Entry = self.source.0.get(&path)?;
                Some(entry.first_name.clone().unwrap_or(path))
            };
            paths.filter_map(first).collect()
        };
        let (one, two) = (files(one), files(two));
        one.iter().any(|file| two.contains(file))
    }

    /// Returns true if two sources have an entry for a path of the destination.
    fn is_of_two(&self, path: &Path) -> bool {
        self.run.operands.may_overlap() && self.sources_of(path).len() > 1
    }

    /// Returns true if two sources have an entry for one path, of which one at most is a directory.
    fn source_has_two(&self) -> bool {
        let is_overlapping = self.run.operands.may_overlap();
        is_overlapping && self.after.0.keys().any(|path| self.is_below_two(path))
    }

    /// Returns true if a path or a directory above it is in two sources, one of which has no directory there.
    fn is_below_two(&self, path: &Path) -> bool {
        path.ancestors().any(|at| {
            let mut sources = self.sources_of(at).into_iter();
            self.is_of_two(at) && !sources.all(Entry::is_directory)
        })
    }

    /// Returns true if `--update` leaves one source of a path at most, so that none has to be named, and the entry is
    /// that of this source or what was there.
    fn is_older_kept(&self, path: &Path, found: Option<&Entry>) -> bool {
        let (Some(before), Some(found)) = (self.before.0.get(path), found) else {
            return false;
        };
        let sources = self.sources_of(path);
        let newer: Vec<_> = sources
            .into_iter()
            .filter(|source| source.modified > before.modified)
            .collect();
        let is_update = self.run.existing == Existing::Update && !before.is_directory();
        is_update
            && match &newer[..] {
                [] => *found == self.seen(path, before),
                [one] => one.has_contents_of(found),
                _ => false,
            }
    }

    /// Returns true if an entry that two sources have is that of one of them, and the other one is named. The lanes
    /// decide which one is first.
    fn is_of_one_source(&self, path: &Path, found: Option<&Entry>) -> bool {
        if self.is_older_kept(path, found) {
            return true;
        }
        // cp -n replaces a link that leads nowhere.
        let before = self.before.0.get(path).map(|entry| self.seen(path, entry));
        if self.run.existing == Existing::NoClobber && before.is_some() && before.as_ref() == found
        {
            return true;
        }
        if self.status != 1 || !self.is_named(path) {
            return false;
        }
        let Some(found) = found else {
            return true;
        };
        let mut sources = self.sources_of(path).into_iter();
        before.as_ref() == Some(found) || sources.any(|source| source.has_contents_of(found))
    }

    /// Returns the entry of the source that belongs to a path of the destination: of two, that of the first source.
    fn source_of(&self, path: &Path) -> Option<&Entry> {
        let found = self.sources_of(path).first().copied();
        // Without -r and -a, a link is the file that it leads to.
        found.and_then(|entry| match entry.kind {
            "link" if self.run.keeps == Keeps::Contents => {
                self.source.0.get(Path::new(&entry.content))
            }
            _ => Some(entry),
        })
    }

    fn seen(&self, path: &Path, entry: &Entry) -> Entry {
        let mut entry = entry.clone();
        entry.allocated = 0;
        let is_of_source = self.source_of(path).is_some();
        let is_directory = entry.is_directory();
        if is_directory && !is_of_source {
            // The time of a directory in which something has changed.
            entry.modified = (0, 0);
        }
        let keeps_all = self.run.keeps == Keeps::All;
        // In directories that a run has made, their owner may write until the run ends. The next one does not know
        // them.
        if (self.was_cut || self.peer_changes_modes()) && is_directory && !keeps_all {
            entry.mode |= 0o700;
        }
        if self.peer_changes_modes() && entry.kind == "file" {
            // rsync gives its owner the right to write what replaces a file.
            entry.mode |= 0o200;
        }
        if is_directory && self.is_of_two(path) {
            // Each source gives a directory its metadata. The peers take those of the first or of the last one.
            return Entry {
                mode: 0,
                owners: (0, 0),
                modified: (0, 0),
                attributes: BTreeMap::new(),
                ..entry
            };
        }
        if !keeps_all && is_of_source {
            entry.modified = (0, 0);
            entry.first_name = None;
            if !is_directory && entry.kind != "file" {
                // cp makes FIFOs with these bits, and rdcp gives what replaces a link the owners of that.
                entry.mode &= 0o777;
                entry.owners = (0, 0);
            }
            if self.run.peer == Peer::Rsync {
                // Of what it replaces, it keeps the permission bits alone.
                entry.attributes.clear();
                entry.owners = (0, 0);
                entry.mode &= if is_directory { 0o777 } else { 0o7777 };
            } else if !self.run.is_root {
                // cp writes into another user's file.
                entry.owners = (0, 0);
            }
        }
        entry
    }

    /// Returns true if the documentation names a difference, or if rdcp was more successful than its peer.
    fn is_explained(&self, path: &Path, expected: Option<&Entry>, found: Option<&Entry>) -> bool {
        let before = self.before.0.get(path).map(|e| self.seen(path, e));
        let bare = |entry: &Entry| Entry {
            first_name: None,
            ..entry.clone()
        };
        // Of an entry that is left alone, rdcp may have removed another name that a peer could not remove.
        let has_its_metadata = found.map(bare) == before.as_ref().map(bare);
        let is_untouched = found == before.as_ref() || self.peer_status != 0 && has_its_metadata;
        let Some(source) = self.source_of(path) else {
            let is_untouched = has_its_metadata;
            // What no source has and both leave alone may have another time, because the two scenes are not made at
            // once, and another mode, which rsync without root gives directories that it cannot read.
            let is_kept = |(found, expected): (&Entry, &Entry)| expected.has_contents_of(found);
            if is_untouched && found.zip(expected).is_some_and(is_kept) {
                return true;
            }
            // Nothing is made for a source that cannot be read.
            let is_above = |(_, top): &(&str, &str)| {
                Path::new(top).starts_with(path) && self.is_named(Path::new(top))
            };
            if found.is_none() && self.status == 1 && self.run.tops().iter().any(is_above) {
                return true;
            }
            // A peer without root removes nothing in a directory that forbids it to its owner.
            let is_mirror = self.run.deletes && !self.run.is_root;
            if found.is_none() && is_mirror && self.peer_status != 0 && self.was_locked(path) {
                return true;
            }
            // What other runs of rdcp have left stays for a day. What could not be read at the source, or be removed,
            // stays.
            let may_stay = path.ancestors().any(is_temporary);
            let may_fail = self.peer_status != 0 || self.may_refuse();
            let is_refused = may_fail && self.status == 1 && self.is_named(path);
            // A peer that fails may have written through a link, and names of a file that failed are missing.
            let is_of_nothing = found.is_none() && before.is_none() && self.peer_status != 0;
            let is_bare = found.map(bare) == expected.map(bare) && self.status == 1;
            return is_untouched && (may_stay || is_refused || is_of_nothing || is_bare);
        };
        // A directory that could not be removed has another time, because some of its entries could.
        let is_left = found.is_some_and(Entry::is_directory) && !source.is_directory();
        let is_refused = is_untouched || found.is_none() || is_left;
        let may_fail = self.peer_status != 0 || self.peer_changes_modes() || self.may_refuse();
        if may_fail && self.status == 1 && self.is_named(path) && is_refused {
            return true;
        }
        let Some(found) = found else {
            return false;
        };
        // Names of one file become links also if the destination has one of them, which a peer makes only if it writes
        // it.
        if let (Some(first), Some(expected)) = (&found.first_name, expected) {
            let linked = Entry {
                first_name: found.first_name.clone(),
                ..expected.clone()
            };
            if linked == *found && self.are_links_at_source(path, first) {
                return true;
            }
        }
        let source = self.seen(path, source);
        // Where nothing was before, cp makes links to what it keeps of other contents.
        let is_new_link = before.is_none() && self.run.existing != Existing::Replace;
        let expected_contents = if is_new_link && expected.is_some() {
            Some(&source)
        } else {
            expected
        };
        if self.run.keeps == Keeps::All && self.has_all_of(found, &source, expected_contents) {
            return true;
        }
        if self.run.keeps != Keeps::All && self.peer_status != 0 && source.has_contents_of(found) {
            return true;
        }
        before
            .is_some_and(|before| self.is_older_explained(path, &source, &before, expected, found))
    }

    /// rsync changes the mode of a directory that forbids writing also if it does not keep modes. cp does not.
    fn peer_changes_modes(&self) -> bool {
        let run = self.run;
        !run.is_root && run.keeps != Keeps::All && run.peer == Peer::Rsync
    }

    /// Returns true if an entry has everything of its source, and the peer has its contents or failed.
    ///
    /// The peers do not keep some combinations of modes and ACLs.
    fn has_all_of(&self, found: &Entry, source: &Entry, expected: Option<&Entry>) -> bool {
        let is_expected = expected.is_some_and(|expected| expected.has_contents_of(source));
        if !is_expected && self.peer_status == 0 {
            return false;
        }
        let mut source = source.clone();
        source.first_name.clone_from(&found.first_name);
        if !self.run.is_root && found.owners != source.owners {
            // The owners that a normal user cannot give, and the bits that mean them.
            if found.owners.0 != source.owners.0 {
                source.mode &= !0o4000;
            }
            if found.owners.1 != source.owners.1 {
                source.mode &= !0o2000;
            }
            source.owners = found.owners;
        }
        // A normal user may write another user's file in place, and changes nothing else of it.
        if !self.run.is_root && found.owners.0 != USER {
            source = Entry {
                content: source.content,
                size: source.size,
                kind: source.kind,
                ..found.clone()
            };
        }
        // The system takes the bit from files whose group the user is not a member of.
        if !self.run.is_root && found.owners.1 != USER && found.mode & 0o2000 == 0 {
            source.mode &= !0o2000;
        }
        *found == source
    }

    /// Returns true if the documentation names a difference of an entry that was there before.
    fn is_older_explained(
        &self,
        path: &Path,
        source: &Entry,
        before: &Entry,
        expected: Option<&Entry>,
        found: &Entry,
    ) -> bool {
        let run = self.run;
        // Another name of it may have been removed or replaced.
        let renamed = Entry {
            first_name: before.first_name.clone(),
            ..found.clone()
        };
        let is_untouched = renamed == *before;
        if run.existing == Existing::NoClobber && is_untouched && !found.is_directory() {
            return true;
        }
        // A normal user gives another user's directory no time, but changes entries in it.
        let is_of_other = !run.is_root && before.owners.0 != USER;
        if is_of_other && found.is_directory() {
            let later = |entry: &Entry| Entry {
                modified: (0, 0),
                ..entry.clone()
            };
            return expected.is_some_and(|expected| later(expected) == later(found));
        }
        if !run.patterns.is_empty() && is_untouched {
            // rsync without root changes the mode of a directory that it cannot read, also of one that is left out.
            if self.peer_status != 0 && self.was_locked(path) {
                return true;
            }
            let Some(expected) = expected else {
                // A pattern for directories protects all that has the name of a directory of the source.
                return true;
            };
            // The two scenes are not made at the same time, so directories that are left out differ in theirs.
            let is_later = Entry {
                modified: found.modified,
                ..expected.clone()
            };
            if found.is_directory() && is_later == *found {
                return true;
            }
        }
        if run.keeps != Keeps::All && source.has_contents_of(found) {
            let is_special = !matches!(found.kind, "file" | "directory");
            // rsync gives a FIFO, a socket or a device the mode of what it replaces.
            if is_special && run.peer == Peer::Rsync {
                return true;
            }
            // rsync without root takes a file that it cannot read for a new one, and gives it a mode.
            let has_old_mode = found.mode == before.mode & !0o6000;
            if self.peer_changes_modes() && before.mode & 0o400 == 0 && has_old_mode {
                return true;
            }
            // A file that is replaced loses its set-user-ID and set-group-ID bits, which cp and rsync leave on the new
            // contents.
            let bare = Entry {
                mode: before.mode & !0o6000,
                ..found.clone()
            };
            let has_others = expected.is_some_and(|expected| {
                (&expected.attributes, expected.owners) == (&found.attributes, found.owners)
            });
            let is_bare = *found == bare && before.mode & 0o6000 != 0 && has_others;
            if found.kind == "file" && is_bare {
                return true;
            }
        }
        if run.existing != Existing::Update {
            return false;
        }
        // rsync compares whole seconds, with one of them to spare, and only those of two files; cp compares what a link
        // leads to, and links further names of a file whatever their times are.
        let original = self.before.0.get(path).expect("it was there");
        let new = self.source_of(path).expect("it is there");
        if new.modified > original.modified {
            return source.has_contents_of(found);
        }
        // What has the same size and time is taken for the same file, and gets the metadata of the source.
        let is_same =
            (new.kind, new.size, new.modified) == (original.kind, original.size, original.modified);
        let alike = Entry {
            content: source.content.clone(),
            ..found.clone()
        };
        let gets_metadata = is_same
            && run.keeps == Keeps::All
            && before.has_contents_of(found)
            && self.has_all_of(&alike, source, Some(source));
        is_untouched || gets_metadata
    }

    /// Returns true if a message names the path or a directory above it.
    fn is_named(&self, path: &Path) -> bool {
        let stderr = self.stderr.replace("/./", "/").replace("/.: ", ": ");
        let stderr = stderr.replace("/: ", ": ").replace(" is a ", ": is a ");
        let mut above = path.ancestors().filter(|at| !at.as_os_str().is_empty());
        above.any(|at| {
            let mut names = vec![Path::new("d").join(at), Path::new("/").join(at)];
            for (source, destination) in self.run.tops() {
                if let Ok(below) = at.strip_prefix(destination) {
                    names.push(Path::new("s").join(source).join(below));
                    names.push(Path::new("/").join(source).join(below));
                }
            }
            names.iter().any(|name| {
                let name = shown(name);
                let name = name.trim_end_matches('/');
                stderr.contains(&format!("{name}: ")) || stderr.contains(&format!("{name}\n"))
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
