//! Answers what the source asks: which entries are wanted, and what an earlier run has left. With `-a`, entries that
//! are kept because they have their contents get their metadata.

use std::{
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat},
    io::Errno,
};

use super::{
    attributes::EntryHandle,
    entry::make_room,
    folders::{check_writable, look_into},
    lane::broken,
    part_file::{MIN_KEPT_BYTES, MapSubject, SourceVersion, find_promise, read_range},
    placement::{EntryNaming, PlacedFolder},
    state::{DestinationShared, DestinationState, add, errno_text},
    stored_times::TimeProbe,
};
use crate::copy::{
    block_digest::{BlockDigest, DigestKey},
    job::CopyError,
    metadata::{EntryKind, LocalOwners, Metadata, attributes_at, modified},
    order::ExistingFiles,
    path::{EntryName, RelativePath},
    question::{
        AnswerKind, AskedEntry, AskedMetadata, ByteRange, ComparedBlock, MAX_ENTRIES, target_digest,
    },
    temporary_names::PartNames,
};

/// The most ranges in all answers of one message. Each needs at most 36 bytes, and a message may have 4 MiB.
const MAX_RANGES: usize = 100_000;

/// The bytes that have one digest, if ranges are compared: so much is sent again if one byte differs.
pub(super) const COMPARED_BYTES: u64 = 16 << 20;

/// The most digests of one file. The blocks of larger files are larger.
const MAX_DIGESTS: u64 = 50_000;

/// Returns an answer for each entry of a folder, in their order. Entries that are kept and have the source's contents
/// get the source's metadata.
/// Fails if the source breaks the protocol, or the work is cancelled.
pub(crate) fn answer(
    shared: &DestinationShared,
    wire: &RelativePath,
    entries: &[AskedEntry],
    owners: &LocalOwners,
) -> Result<Vec<AnswerKind>, CopyError> {
    if entries.len() > MAX_ENTRIES {
        return Err(broken("too many entries in one question"));
    }
    let Some(folder) = AskedFolder::find(shared, wire)? else {
        return Ok(vec![AnswerKind::Leave; entries.len()]);
    };
    let dry_run = shared.state.options.dry_run;
    if dry_run && !shared.folders.foresee(&shared.state, &folder.placed.path) {
        return Ok(vec![AnswerKind::Leave; entries.len()]);
    }
    if !folder.may_be_answered(shared) {
        return Ok(vec![AnswerKind::Leave; entries.len()]);
    }
    let directory = folder.directory.as_ref().ok().and_then(Option::as_ref);
    let mut tools = AnswerTools {
        owners,
        room: MAX_RANGES,
        probe: directory.map(|fd| TimeProbe::new(fd.as_fd(), !dry_run)),
        changed: Vec::new(),
    };
    let answers: Result<Vec<AnswerKind>, CopyError> = entries
        .iter()
        .map(|entry| {
            let running = shared.state.check_running();
            running.map_err(|_| CopyError::Cancelled)?;
            let answer = folder.answer(shared, entry, &mut tools);
            if matches!(answer, AnswerKind::Skip | AnswerKind::Keep) {
                add(&shared.state.counts.skipped, 1);
            }
            if dry_run && !answer.is_nothing() && !folder.foresee(shared, entry) {
                return Ok(AnswerKind::Leave);
            }
            Ok(answer)
        })
        .collect();
    shared.state.report_changed(tools.changed);
    answers
}

/// What the answers to one question share.
struct AnswerTools<'a> {
    owners: &'a LocalOwners,
    /// The ranges that the answers may still have.
    room: usize,
    /// Tells which times the folder stores; none if there is no folder.
    probe: Option<TimeProbe<'a>>,
    /// The local paths of entries whose metadata were changed, or would be in a dry run.
    changed: Vec<Vec<u8>>,
}

/// The folder of a question, and the folder itself if the destination has it.
struct AskedFolder {
    placed: PlacedFolder,
    /// None if the destination has no directory there.
    directory: Result<Option<OwnedFd>, Errno>,
    /// True if the run has made the folder.
    is_of_run: bool,
}

impl AskedFolder {
    /// Returns none for a folder that has no place, which is reported.
    fn find(shared: &DestinationShared, wire: &RelativePath) -> Result<Option<Self>, CopyError> {
        let state = &shared.state;
        let placed = match state.placement.folder(wire) {
            Ok(placed) => placed,
            Err(fault) => {
                shared.refuse_folder(fault)?;
                return Ok(None);
            }
        };
        let directory = look_into(shared, &placed);
        let opened = directory.as_ref().ok().and_then(Option::as_ref);
        let stat = opened.and_then(|fd| fstat(fd).ok());
        Ok(Some(Self {
            placed,
            directory,
            is_of_run: stat.is_some_and(|stat| state.written.contains(&stat)),
        }))
    }

    /// Returns false if entries may be kept and the folder cannot be opened to look for them. Reports that once.
    fn may_be_answered(&self, shared: &DestinationShared) -> bool {
        let state = &shared.state;
        match &self.directory {
            Err(errno) if keeps_existing(state) => {
                let why = format!("cannot open the directory: {}", errno_text(*errno));
                shared.folders.fail(state, &self.placed.path, &why);
                false
            }
            _ => true,
        }
    }

    fn answer(
        &self,
        shared: &DestinationShared,
        entry: &AskedEntry,
        tools: &mut AnswerTools<'_>,
    ) -> AnswerKind {
        let state = &shared.state;
        let name = state
            .placement
            .entry_name(&self.placed.entries, entry.name.clone());
        // Without a folder or a name of its own, the entry is not there: sending it shows what is wrong.
        let (Ok(name), Ok(Some(directory))) = (name, &self.directory) else {
            return AnswerKind::Send;
        };
        let found = statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        if let Some(errno) = found.err().filter(|errno| *errno != Errno::NOENT) {
            if keeps_existing(state) {
                let why = format!("cannot look at what is there: {}", errno_text(errno));
                state.fail(&self.placed.path.join(&name), why);
                return AnswerKind::Leave;
            }
        }
        if let Ok(found) = found {
            if self.is_of_run || state.written.contains(&found) {
                // Another source has brought it. The lane refuses this one, and names it.
                return AnswerKind::Send;
            }
            if let Some(answer) = self.keep(shared, directory, (&name, &found), entry, tools) {
                return answer;
            }
        }
        // What the user named may lead to a device, which receives the whole file.
        let is_plain = found.is_ok_and(|found| EntryKind::of(&found) == Some(EntryKind::File))
            || found.is_err()
            || state.placement.naming(&self.placed) == EntryNaming::Tree;
        let may_resume = state.options.resume && entry.kind == EntryKind::File && is_plain;
        if may_resume && entry.size >= MIN_KEPT_BYTES {
            if let Some(answer) = self.resume(shared, directory, &name, entry, &mut tools.room) {
                return answer;
            }
        }
        AnswerKind::Send
    }

    /// Returns the answer for an entry that the options keep; none if they do not. If it is the same at both ends, it
    /// gets the source's metadata.
    fn keep(
        &self,
        shared: &DestinationShared,
        directory: &OwnedFd,
        (name, found): (&EntryName, &Stat),
        entry: &AskedEntry,
        tools: &mut AnswerTools<'_>,
    ) -> Option<AnswerKind> {
        let state = &shared.state;
        let is_same = has_same_contents(entry, directory, name, found)
            && tools
                .probe
                .as_mut()
                .is_some_and(|probe| probe.stores_as(entry.modified, found));
        if !is_kept(state, entry, found, is_same) {
            return None;
        }
        // What is the same is not told to one who may not read.
        if !is_same || !state.existing.reads {
            return Some(AnswerKind::Keep);
        }
        // Another source would replace it. Another name of the same file may be replaced.
        if state.options.existing != ExistingFiles::Keep && found.st_nlink == 1 {
            state.written.note(found);
        }
        let asked = entry.metadata.as_ref();
        if let Some(metadata) = asked.filter(|_| state.keeper.keeps_all()) {
            let kept = KeptEntry {
                directory,
                folder: &self.placed.path,
                name,
                found: *found,
            };
            if kept.take_over(shared, metadata, tools.owners) {
                tools.changed.push(self.placed.path.join(name).into());
            }
        }
        Some(AnswerKind::Skip)
    }

    /// Returns true if the entry could be written. Reports what keeps it from that, and what would be removed for it.
    fn foresee(&self, shared: &DestinationShared, entry: &AskedEntry) -> bool {
        let state = &shared.state;
        let name = state
            .placement
            .entry_name(&self.placed.entries, entry.name.clone());
        let name = match name {
            Ok(name) => name,
            Err(why) => {
                state.fail(&self.placed.path, why);
                return false;
            }
        };
        if entry.kind.is_device() && !state.keeper.makes_devices() {
            state.note_devices();
            return false;
        }
        let Ok(Some(directory)) = &self.directory else {
            return true;
        };
        if let Err(errno) = check_writable(state, directory.as_fd()) {
            let why = format!("cannot write in the directory: {}", errno_text(errno));
            shared.folders.fail(state, &self.placed.path, &why);
            return false;
        }
        let local = self.placed.path.join(&name);
        let found = statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        let is_directory =
            found.is_ok_and(|stat| EntryKind::of(&stat) == Some(EntryKind::Directory));
        let room = if is_directory {
            make_room(state, directory.as_fd(), &name, &local)
        } else {
            Ok(())
        };
        if let Err(why) = &room {
            state.fail(&local, why.as_str());
        }
        room.is_ok()
    }

    /// Returns the answer that continues what an earlier run has left, if it has.
    fn resume(
        &self,
        shared: &DestinationShared,
        directory: &OwnedFd,
        name: &EntryName,
        entry: &AskedEntry,
        room: &mut usize,
    ) -> Option<AnswerKind> {
        let state = &shared.state;
        let version = SourceVersion {
            size: entry.size,
            modified: entry.modified,
            changed: entry.changed,
        };
        let names = PartNames::of(name, &state.owner);
        let subject = MapSubject {
            owner: &state.owner,
            names: &names,
            version,
        };
        let (part, promise) = find_promise(state, directory.as_fd(), subject)?;
        let ranges = &promise.ranges.ranges;
        if ranges.is_empty() {
            return None;
        }
        // What is told of a client's file, or listed with its digest, is what is on the disk now.
        let is_trusted = promise.ranges.is_current
            && !state.keeper.is_served()
            && state.options.digest.is_none();
        let blocks = if is_trusted {
            ranges.clone()
        } else {
            blocks(ranges, entry.size)
        };
        *room = room.checked_sub(blocks.len())?;
        let answer = if is_trusted {
            let bytes = blocks.iter().map(|range| range.end - range.start).sum();
            add(&state.counts.resumed_bytes, bytes);
            AnswerKind::Resume(blocks)
        } else {
            let key = DigestKey::random()?;
            let blocks = digests(state, &part, key, blocks)?;
            AnswerKind::Compare { key, blocks }
        };
        let local = self.placed.path.join(name);
        let is_kept = state.options.dry_run || shared.large.promise(state, &local, promise);
        is_kept.then_some(answer)
    }
}

/// Returns true if what the destination has may be kept although the source has other contents. What cannot be looked
/// at is then not sent: it could replace what is to be kept.
fn keeps_existing(state: &DestinationState) -> bool {
    matches!(
        state.options.existing,
        ExistingFiles::Keep | ExistingFiles::ReplaceOlder
    )
}

/// Returns true if the options say that what the destination has is kept. A directory is never kept instead of a file:
/// the lane names it.
fn is_kept(state: &DestinationState, entry: &AskedEntry, found: &Stat, is_same: bool) -> bool {
    let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    match state.options.existing {
        _ if is_directory => false,
        ExistingFiles::Keep => true,
        ExistingFiles::ReplaceOlder => is_same || modified(found) >= entry.modified,
        ExistingFiles::ReplaceDifferent => is_same,
        // A run that continues another does not send again what that has finished.
        ExistingFiles::Replace => state.options.resume && is_same && state.existing.reads,
    }
}

/// Returns true if the destination has an entry of the same kind, which has the same size as a file, or the same target
/// as a symbolic link.
fn has_same_contents(
    entry: &AskedEntry,
    directory: &OwnedFd,
    name: &EntryName,
    found: &Stat,
) -> bool {
    if EntryKind::of(found) != Some(entry.kind) {
        return false;
    }
    match entry.kind {
        EntryKind::File => u64::try_from(found.st_size) == Ok(entry.size),
        EntryKind::Symlink => {
            let target = readlinkat(directory, name.as_bytes(), Vec::new());
            let digest = target.map(|target| target_digest(target.as_bytes()));
            entry.target.is_some() && entry.target == digest.ok()
        }
        _ => true,
    }
}

/// Cuts ranges into blocks that get a digest each.
fn blocks(ranges: &[ByteRange], size: u64) -> Vec<ByteRange> {
    let block_bytes = COMPARED_BYTES.max(size.div_ceil(MAX_DIGESTS));
    let mut blocks = Vec::new();
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(block_bytes));
            blocks.push(ByteRange { start, end });
            start = end;
        }
    }
    blocks
}

fn digests(
    state: &DestinationState,
    part: &OwnedFd,
    key: DigestKey,
    blocks: Vec<ByteRange>,
) -> Option<Vec<ComparedBlock>> {
    let digests = blocks.into_iter().map(|block| {
        let mut digest = BlockDigest::new(key);
        let take = |bytes: &[u8]| {
            digest.update(bytes);
            Ok(())
        };
        read_range(state, part, block.start, block.end, take).ok()?;
        Some((block, digest.finish()))
    });
    digests.collect()
}

/// An entry that the destination keeps.
pub(crate) struct KeptEntry<'a> {
    pub(crate) directory: &'a OwnedFd,
    pub(crate) folder: &'a RelativePath,
    /// The local name.
    pub(crate) name: &'a EntryName,
    /// What the entry has.
    pub(crate) found: Stat,
}

impl KeptEntry<'_> {
    /// Gives the entry the mode, the owners and the attributes of the source's entry, as far as they differ. What
    /// cannot be kept is reported as for a new entry. Returns true if something was changed, or would be in a dry run.
    pub(crate) fn take_over(
        &self,
        shared: &DestinationShared,
        asked: &AskedMetadata,
        owners: &LocalOwners,
    ) -> bool {
        let state = &shared.state;
        let note = |text| state.note(text);
        let own = CString::new(self.name.as_bytes()).map_err(|_| Errno::INVAL);
        let own = own.and_then(|name| attributes_at(self.directory, &name));
        let own = own.unwrap_or_default();
        let kept = || {
            let kept = own.iter().filter(|(name, _)| state.keeper.keeps(name));
            kept.cloned().collect()
        };
        let metadata = Metadata {
            mode: asked.mode,
            uid: owners.user(asked.uid),
            gid: owners.group(asked.gid),
            attributes: asked.attributes.clone().unwrap_or_else(kept),
            ..Metadata::default()
        };
        let plan = state
            .keeper
            .plan_for_kept(&metadata, &self.found, &own, &note);
        let Some(plan) = plan else { return false };
        if state.options.dry_run {
            return true;
        }
        if !shared.may_write(&self.folder.join(self.name)) {
            return false;
        }
        match self.open() {
            Ok(place) => {
                let handle = match EntryKind::of(&self.found) {
                    Some(EntryKind::Symlink) => EntryHandle::Link(place.as_fd()),
                    _ => EntryHandle::Place(place.as_fd()),
                };
                state.keeper.apply(handle, plan, &metadata, &note);
                true
            }
            Err(errno) => {
                let why = errno_text(errno);
                note(format!("metadata of some entries were not kept: {why}"));
                false
            }
        }
    }

    /// Opens the entry as a place only.
    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = openat(self.directory, self.name.as_bytes(), flags, Mode::empty())?;
        let stat = fstat(&place)?;
        // Another process may have replaced the entry.
        let is_same = (stat.st_dev, stat.st_ino) == (self.found.st_dev, self.found.st_ino);
        is_same.then_some(place).ok_or(Errno::STALE)
    }
}
