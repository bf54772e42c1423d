//! Writes what one lane carries: reads its records, and hands out their contents from the slots of the stream.

use std::{collections::HashMap, mem, os::fd::AsFd, pin::Pin, sync::Arc};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt},
    sync::mpsc::Sender,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    ends::SpooledLink,
    entry::{CurrentFolder, SpecialEntry, TemporaryName, digest_of},
    in_place::{SpecialTarget, is_append_only},
    large_target::{LargeTarget, PartUse},
    placement::{EntryNames, PlacedFolder},
    state::{DestinationShared, add},
};
use crate::{
    Stream,
    copy::{
        budget::SET_ENTRY_BYTES,
        job::CopyError,
        metadata::{EntryKind, LocalOwners, Metadata},
        path::{EntryName, RelativePath},
        question::ByteRange,
        record::{LaneRecord, LargeFile, PREFIX_BYTES, RecordPrefix, decode},
        temporary_names::RESERVED,
    },
};

/// Writes what one lane carries.
pub(super) struct LaneWriter {
    pub(super) shared: Arc<DestinationShared>,
    pub(super) reader: RecordReader,
    folder: LaneFolder,
    temporary: TemporaryName,
    owners: LocalOwners,
    /// The files whose parts may follow in this lane.
    pub(super) announced: HashMap<u64, LargeFile>,
    /// Contents that are written and are not in the map yet.
    pub(super) unmapped: Option<(Arc<LargeTarget>, ByteRange)>,
    /// Entries that were not written, for the source.
    unwritten: Vec<RelativePath>,
    unwritten_paths: Sender<RelativePath>,
}

/// The folder of the entries that follow.
enum LaneFolder {
    /// No folder was named yet.
    None,
    /// Entries are written.
    Open(Box<CurrentFolder>),
    /// The folder at this path of the source could not be opened: its entries are dropped.
    Broken(RelativePath),
}

impl LaneWriter {
    /// Returns the writer of a lane. The paths of entries that were not written are sent to `unwritten_paths`, if the
    /// source needs them.
    pub(super) fn new(
        shared: Arc<DestinationShared>,
        stream: Stream,
        unwritten_paths: Sender<RelativePath>,
    ) -> Self {
        Self {
            reader: RecordReader::new(stream, shared.state.halt.clone()),
            shared,
            folder: LaneFolder::None,
            temporary: TemporaryName::random(),
            owners: LocalOwners::default(),
            announced: HashMap::new(),
            unmapped: None,
            unwritten: Vec::new(),
            unwritten_paths,
        }
    }

    /// Writes everything up to the end of the lane, and returns the stream. A lane that fails aborts its stream.
    /// Fails if the stream breaks, the source breaks the protocol, or the work is cancelled.
    /// Not cancel safe: a dropped future leaves a temporary file behind.
    pub(super) async fn run(mut self) -> Result<Stream, CopyError> {
        let result = self.write_all().await;
        if let LaneFolder::Open(folder) = &mut self.folder {
            if let Some(left) = folder.remove_temporary(&mut self.temporary) {
                self.shared.state.fail(&folder.local, left);
            }
        }
        self.map_written();
        let mut stream = self.reader.into_stream();
        match result {
            Ok(()) => Ok(stream),
            Err(failure) => {
                self.shared.state.end_early(&failure);
                stream.abort(&self.shared.state.reason());
                stream.close().await;
                Err(failure)
            }
        }
    }

    async fn write_all(&mut self) -> Result<(), CopyError> {
        let halt = &self.shared.state.halt;
        let permitted = halt.run_until_cancelled(self.shared.compared.cancelled());
        permitted.await.ok_or(CopyError::Cancelled)?;
        loop {
            match self.reader.next().await? {
                LaneRecord::End => return self.reader.end().await,
                record if self.shared.state.options.dry_run => drop(record),
                record => self.write(record).await?,
            }
            for path in mem::take(&mut self.unwritten) {
                // The control has ended only if the work is cancelled.
                let sent = self.unwritten_paths.send(path).await;
                sent.map_err(|_| CopyError::Cancelled)?;
            }
        }
    }

    async fn write(&mut self, record: LaneRecord) -> Result<(), CopyError> {
        match record {
            LaneRecord::Folder {
                path,
                metadata,
                above,
            } => self.enter(path, metadata, &above),
            LaneRecord::File { name, mut metadata } => {
                self.adopt(&mut metadata);
                self.write_file(name, &metadata).await
            }
            LaneRecord::Special {
                name,
                kind,
                target,
                mut metadata,
            } => {
                self.adopt(&mut metadata);
                let special = SpecialEntry {
                    kind,
                    target,
                    metadata,
                };
                self.make_special(name, &special)
            }
            LaneRecord::HardLink { name, target } => self.keep_link(name, target, false),
            LaneRecord::KeptLink { name, target } => self.keep_link(name, target, true),
            LaneRecord::LargeFile(file) => self.announce(file),
            LaneRecord::Part { id, offset } => self.write_part(id, offset).await,
            LaneRecord::LargeFileEnd {
                id,
                content_bytes: Some(bytes),
            } => self.end_large(id, bytes).await,
            LaneRecord::LargeFileEnd {
                id,
                content_bytes: None,
            } => self.drop_broken(id, PartUse::Continuable),
            LaneRecord::LargeFileChanged { id } => self.drop_broken(id, PartUse::None),
            LaneRecord::Hole { id, start, end } => self.write_hole(id, start, end).await,
            LaneRecord::Owner { user, group } => {
                self.shared.state.keep(2 * SET_ENTRY_BYTES)?;
                let few = self.owners.add_names(user, group);
                few.then_some(()).ok_or_else(|| broken("too many owners"))
            }
            LaneRecord::End => Ok(()),
        }
    }

    /// Replaces the numbers of the owners by those of this host.
    pub(super) fn adopt(&self, metadata: &mut Metadata) {
        metadata.uid = self.owners.user(metadata.uid);
        metadata.gid = self.owners.group(metadata.gid);
    }

    fn enter(
        &mut self,
        wire: RelativePath,
        mut metadata: Option<Metadata>,
        above: &[u32],
    ) -> Result<(), CopyError> {
        if wire.is_empty() && metadata.is_some() {
            self.shared
                .state
                .placement
                .check_contents()
                .map_err(broken)?;
        }
        if let Some(metadata) = &mut metadata {
            self.adopt(metadata);
        }
        let placed = match self.shared.state.placement.folder(&wire) {
            Ok(placed) => placed,
            Err(fault) => {
                self.folder = LaneFolder::Broken(wire);
                return self.shared.refuse_folder(fault);
            }
        };
        if let (EntryNames::Refused(why), None) = (&placed.entries, &metadata) {
            // The folder is not made for entries that may not be in it.
            self.shared.state.fail(&placed.path, (*why).to_owned());
            self.folder = LaneFolder::Broken(wire);
            return Ok(());
        }
        self.folder = if self.shared.may_write(&placed.path) {
            self.open_folder(wire, placed, metadata, above)
        } else {
            LaneFolder::Broken(wire)
        };
        Ok(())
    }

    fn open_folder(
        &self,
        wire: RelativePath,
        placed: PlacedFolder,
        metadata: Option<Metadata>,
        above: &[u32],
    ) -> LaneFolder {
        let (shared, state) = (&*self.shared, &self.shared.state);
        let naming = state.placement.naming(&placed);
        match shared.folders.open(state, &placed.path, metadata, above) {
            Ok(_) if !shared.may_write_in(&placed.path) => LaneFolder::Broken(wire),
            Ok(folder) => LaneFolder::Open(Box::new(CurrentFolder {
                wire,
                has_targets: shared.has_targets_in(&placed.path),
                acl: state.keeper.inherited_acl(folder.fd.as_fd()),
                is_append_only: is_append_only(folder.fd.as_fd()),
                local: placed.path,
                entries: placed.entries,
                fd: folder.fd,
                id: folder.id,
                is_of_run: folder.is_of_run,
                fresh: None,
                naming,
            })),
            Err(fault) => {
                shared.folders.fail(state, &fault.local, &fault.why);
                LaneFolder::Broken(wire)
            }
        }
    }

    async fn write_file(&mut self, name: EntryName, metadata: &Metadata) -> Result<(), CopyError> {
        let Some((wire, local)) = self.place_entry(name)? else {
            return Ok(());
        };
        let LaneFolder::Open(folder) = &mut self.folder else {
            return Ok(());
        };
        let state = &self.shared.state;
        let bytes = self.reader.contents_left() as u64;
        match SpecialTarget::find(state, folder.target(), &local, folder.naming) {
            Ok(None) => {}
            Ok(Some(target)) => return self.write_special(&target, wire, &local).await,
            Err(why) => {
                self.fail_entry(wire, &local, why);
                return Ok(());
            }
        }
        let mut file = folder.begin_file(state, &mut self.temporary, &local, metadata);
        let mut digest = digest_of(state);
        while let Ok(new) = &file {
            let piece = match self.reader.piece().await {
                Ok(piece) => piece,
                Err(failure) => {
                    if let Some(left) = new.left(bytes) {
                        let why = format!("was not copied to its end{left}");
                        state.fail(&folder.local.join(&local), why);
                    }
                    return Err(failure);
                }
            };
            let count = piece.len();
            if count == 0 {
                break;
            }
            if let Some(digest) = &mut digest {
                digest.update(piece);
            }
            if let Err(why) = new.write(piece) {
                file = Err(why + &new.left(bytes).unwrap_or_default());
            }
            self.reader.consume(count);
        }
        let temporary = &mut self.temporary;
        let finish = |file| folder.finish_file(state, temporary, file, &local, metadata);
        match file.and_then(finish) {
            Ok(()) => {
                add(&state.counts.files, 1);
                add(&state.counts.bytes, bytes);
                if let Some(digest) = digest {
                    state.add_digest(digest.finish(), &wire);
                }
            }
            Err(why) => self.fail_entry(wire, &local, why),
        }
        Ok(())
    }

    /// Writes the contents that follow to a device or a FIFO.
    async fn write_special(
        &mut self,
        target: &SpecialTarget,
        wire: RelativePath,
        local: &EntryName,
    ) -> Result<(), CopyError> {
        let bytes = self.reader.contents_left() as u64;
        let mut digest = digest_of(&self.shared.state);
        let mut written = 0;
        while written < bytes {
            let piece = self.reader.piece().await?;
            let count = piece.len();
            if let Some(digest) = &mut digest {
                digest.update(piece);
            }
            if let Err(why) = target.write(piece, written).await {
                self.fail_entry(wire, local, why);
                return Ok(());
            }
            self.reader.consume(count);
            written += count as u64;
        }
        let state = &self.shared.state;
        match target.finish(bytes, state.options.fsync).await {
            Ok(()) => {
                add(&state.counts.files, 1);
                add(&state.counts.bytes, bytes);
                if let Some(digest) = digest {
                    state.add_digest(digest.finish(), &wire);
                }
            }
            Err(why) => self.fail_entry(wire, local, why),
        }
        Ok(())
    }

    fn make_special(&mut self, name: EntryName, special: &SpecialEntry) -> Result<(), CopyError> {
        if matches!(special.kind, EntryKind::File | EntryKind::Directory) {
            return Err(broken("a file or directory as an entry without contents"));
        }
        let Some((wire, local)) = self.place_entry(name)? else {
            return Ok(());
        };
        if special.kind.is_device() && !self.shared.state.keeper.makes_devices() {
            self.shared.state.note_devices();
            self.keep_unwritten(wire);
            return Ok(());
        }
        let target = &special.target;
        if self.shared.state.placement.reserves_target(target) {
            let why = format!("cannot make the link: its target {RESERVED}");
            self.fail_entry(wire, &local, why);
            return Ok(());
        }
        let LaneFolder::Open(folder) = &mut self.folder else {
            return Ok(());
        };
        match folder.make_special(&self.shared.state, &mut self.temporary, &local, special) {
            Ok(()) => add(&self.shared.state.counts.files, 1),
            Err(why) => self.fail_entry(wire, &local, why),
        }
        Ok(())
    }

    /// Returns the path of the source and the local name of an entry of the current folder; none if the entry cannot be
    /// written, which is reported.
    fn place_entry(
        &mut self,
        name: EntryName,
    ) -> Result<Option<(RelativePath, EntryName)>, CopyError> {
        let folder = match &self.folder {
            LaneFolder::None => return Err(broken("an entry without a folder")),
            LaneFolder::Broken(wire) => {
                let path = wire.join(&name);
                self.keep_unwritten(path);
                return Ok(None);
            }
            LaneFolder::Open(folder) => folder,
        };
        let wire = folder.wire.join(&name);
        self.shared.state.set_current(|| wire.clone());
        match self
            .shared
            .state
            .placement
            .entry_name(&folder.entries, name)
        {
            Ok(local)
                if folder.has_targets && !self.shared.may_write(&folder.local.join(&local)) =>
            {
                self.keep_unwritten(wire);
                Ok(None)
            }
            Ok(local) => Ok(Some((wire, local))),
            Err(why) => {
                self.shared.state.fail(&folder.local.clone(), why);
                self.keep_unwritten(wire);
                Ok(None)
            }
        }
    }

    /// Reports that an entry of the current folder was not written, and removes its temporary file.
    fn fail_entry(&mut self, wire: RelativePath, name: &EntryName, why: String) {
        if let LaneFolder::Open(folder) = &mut self.folder {
            self.shared.state.fail(&folder.local.join(name), why);
            if let Some(left) = folder.remove_temporary(&mut self.temporary) {
                self.shared.state.fail(&folder.local, left);
            }
        }
        self.keep_unwritten(wire);
    }

    /// Keeps the path of an entry that was not written, if something depends on it.
    pub(super) fn keep_unwritten(&mut self, wire: RelativePath) {
        if self.shared.state.options.archive {
            self.shared.links.add_failed(&self.shared.state, &wire);
        }
        if self.shared.state.options.remove_source_files {
            self.unwritten.push(wire);
        }
    }

    fn keep_link(
        &mut self,
        name: EntryName,
        target: RelativePath,
        is_kept: bool,
    ) -> Result<(), CopyError> {
        let Some((path, _)) = self.place_entry(name)? else {
            return Ok(());
        };
        let link = SpooledLink {
            path,
            target,
            is_kept,
        };
        let kept = self.shared.links.push(&self.shared.state, &link);
        kept.map_err(|error| CopyError::Local(format!("cannot keep a list of hard links: {error}")))
    }
}

/// The records of a lane.
///
/// A record is copied before it is decoded, because a peer can change the bytes of a slot over RDMA. Contents are not
/// copied: whatever they are, they are contents.
pub(super) struct RecordReader {
    stream: Stream,
    /// The bytes of one record.
    record: Vec<u8>,
    /// The bytes of contents that are still to be read.
    contents_left: usize,
    halt: CancellationToken,
    halted: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl RecordReader {
    /// Returns the reader of a lane, which ends with [`CopyError::Cancelled`] when `halt` is cancelled.
    pub(super) fn new(stream: Stream, halt: CancellationToken) -> Self {
        let halted = Box::pin(halt.clone().cancelled_owned());
        Self {
            stream,
            record: Vec::new(),
            contents_left: 0,
            halt,
            halted,
        }
    }

    /// Returns the next record, after what is left of the contents of the last one.
    /// Fails if the stream breaks or ends, the record is not valid, or the work is cancelled.
    pub(super) async fn next(&mut self) -> Result<LaneRecord, CopyError> {
        self.skip_contents().await?;
        if self.halt.is_cancelled() {
            return Err(CopyError::Cancelled);
        }
        tokio::task::consume_budget().await;
        self.fill(PREFIX_BYTES).await?;
        let prefix = self.record[..PREFIX_BYTES].try_into();
        let prefix = RecordPrefix::decode(prefix.unwrap_or_default()).map_err(broken)?;
        self.fill(prefix.record_bytes).await?;
        self.contents_left = prefix.content_bytes;
        decode(&self.record).map_err(broken)
    }

    /// Returns the bytes of contents that are still to be read.
    pub(super) fn contents_left(&self) -> usize {
        self.contents_left
    }

    /// Returns the next piece of the contents, in its slot; empty at their end.
    /// Fails if the stream breaks or ends, or the work is cancelled.
    pub(super) async fn piece(&mut self) -> Result<&[u8], CopyError> {
        if self.contents_left == 0 {
            return Ok(&[]);
        }
        let left = self.contents_left;
        let bytes = self.bytes().await?;
        let count = bytes.len().min(left);
        Ok(&bytes[..count])
    }

    /// Consumes `count` bytes of the piece that was returned last.
    pub(super) fn consume(&mut self, count: usize) {
        Pin::new(&mut self.stream).consume(count);
        self.contents_left -= count;
    }

    /// Reads to the end of the stream behind the last record.
    /// Fails if more bytes follow, the stream breaks, or the work is cancelled.
    pub(super) async fn end(&mut self) -> Result<(), CopyError> {
        self.skip_contents().await?;
        let rest = tokio::select! {
            biased;
            rest = self.stream.fill_buf() => rest.map_err(|error| CopyError::of_stream(&error))?,
            () = self.halted.as_mut() => return Err(CopyError::Cancelled),
        };
        if rest.is_empty() {
            Ok(())
        } else {
            Err(broken("bytes follow the last record"))
        }
    }

    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }

    async fn skip_contents(&mut self) -> Result<(), CopyError> {
        while self.contents_left > 0 {
            let count = self.piece().await?.len();
            self.consume(count);
        }
        Ok(())
    }

    /// Copies the next `count` bytes of the stream to `record`.
    async fn fill(&mut self, count: usize) -> Result<(), CopyError> {
        self.record.clear();
        while self.record.len() < count {
            let missing = count - self.record.len();
            // The field is taken out while the bytes are borrowed from the stream.
            let mut record = std::mem::take(&mut self.record);
            let bytes = self.bytes().await?;
            let piece = &bytes[..bytes.len().min(missing)];
            record.extend_from_slice(piece);
            let taken = piece.len();
            Pin::new(&mut self.stream).consume(taken);
            self.record = record;
        }
        Ok(())
    }

    /// Returns the unread rest of the current slot, which is not empty.
    async fn bytes(&mut self) -> Result<&[u8], CopyError> {
        let bytes = tokio::select! {
            biased;
            bytes = self.stream.fill_buf() => bytes.map_err(|error| CopyError::of_stream(&error))?,
            () = self.halted.as_mut() => return Err(CopyError::Cancelled),
        };
        if bytes.is_empty() {
            return Err(broken("the lane ended too early"));
        }
        Ok(bytes)
    }
}

/// Returns the failure with a source that breaks the protocol.
pub(super) fn broken(what: impl std::fmt::Display) -> CopyError {
    CopyError::Local(format!("the source broke the protocol: {what}"))
}
