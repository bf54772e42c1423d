//! What a lane writes of files that arrive in parts.

use std::sync::Arc;

use super::LaneWriter;
use crate::copy::{
    destination::{
        large::{
            FoundFile, MAX_OPEN,
            target::{LargeTarget, PartUse},
        },
        reader::broken,
        state::add,
    },
    job::CopyFailure,
    path::RelativePath,
    question::ByteRange,
    record::LargeFile,
};

/// The bytes of contents that are written between two records of a map. A process that is killed loses so much for each
/// lane, and a record is one system call.
const MAPPED_BYTES: u64 = 8 << 20;

impl LaneWriter {
    /// Keeps the announcement of a file until its first part.
    pub(super) fn announce(&mut self, mut file: LargeFile) -> Result<(), CopyFailure> {
        self.adopt(&mut file.metadata);
        if self.announced.len() >= MAX_OPEN {
            let large = &self.shared.large;
            self.announced
                .retain(|&id, _| matches!(large.find(id), FoundFile::Open(_)));
        }
        if self.announced.len() >= MAX_OPEN {
            return Err(broken("too many large files at the same time"));
        }
        self.announced.insert(file.id, file);
        Ok(())
    }

    /// Returns the file with a number; none if it could not be written.
    fn large_target(&mut self, id: u64) -> Result<Option<Arc<LargeTarget>>, CopyFailure> {
        match self.shared.large.find(id) {
            FoundFile::Open(target) => return Ok(Some(target)),
            FoundFile::Abandoned => return Ok(None),
            FoundFile::Unknown => {}
        }
        let Some(file) = self.announced.get(&id) else {
            return Err(broken("a part of a file that was not announced"));
        };
        let wire = file.path.clone();
        let local = self.local_path(&wire);
        if !self.shared.may_write(&local) {
            self.drop_large(id, wire, PartUse::None)?;
            return Ok(None);
        }
        match self.shared.open_large(file)? {
            Ok(target) if self.shared.may_write_in(&local) => return Ok(Some(target)),
            Ok(_) => {
                self.drop_large(id, wire, PartUse::Continuable)?;
            }
            Err(why) => self.fail_large(id, wire, why, PartUse::None)?,
        }
        Ok(None)
    }

    /// Writes the contents that follow as a part of a file.
    pub(super) async fn write_part(&mut self, id: u64, offset: u64) -> Result<(), CopyFailure> {
        let length = self.reader.contents_left() as u64;
        let Some(end) = offset.checked_add(length) else {
            return Err(broken("a part behind the end of every file"));
        };
        let Some(target) = self.large_target(id)? else {
            return Ok(());
        };
        if end > target.file.size {
            return Err(broken("a part behind the end of its file"));
        }
        self.shared.state.set_current(|| target.file.path.clone());
        let mut at = offset;
        while at < end {
            let piece = self.reader.piece().await?;
            let count = piece.len();
            if let Err(why) = target.write_at(piece, at).await {
                return self.fail_large(id, target.file.path.clone(), why, PartUse::Continuable);
            }
            self.reader.consume(count);
            at += count as u64;
        }
        add(&self.shared.state.counts.bytes, length);
        self.note_written(&target, ByteRange { start: offset, end });
        if target.add_written(length) {
            self.commit(&target).await?;
        }
        Ok(())
    }

    /// Writes a hole as zeros, if the file needs them.
    pub(super) async fn write_hole(
        &mut self,
        id: u64,
        start: u64,
        end: u64,
    ) -> Result<(), CopyFailure> {
        let Some(target) = self.large_target(id)? else {
            return Ok(());
        };
        if start > end || end > target.file.size {
            return Err(broken("a hole behind the end of its file"));
        }
        if let Err(why) = target.write_hole(start, end).await {
            return self.fail_large(id, target.file.path.clone(), why, PartUse::Continuable);
        }
        Ok(())
    }

    /// Notes how many bytes all parts of a file have.
    pub(super) async fn end_large(&mut self, id: u64, bytes: u64) -> Result<(), CopyFailure> {
        let target = self.large_target(id)?;
        self.announced.remove(&id);
        match target {
            Some(target) if target.expect(bytes) => self.commit(&target).await,
            _ => Ok(()),
        }
    }

    /// Drops a file that the source could not read, and has reported.
    pub(super) fn drop_broken(&mut self, id: u64, part: PartUse) -> Result<(), CopyFailure> {
        let target = self.large_target(id)?;
        self.announced.remove(&id);
        let Some(target) = target else {
            return Ok(());
        };
        self.drop_large(id, target.file.path.clone(), part)?;
        if let Some(left) = target.left() {
            let why = format!("was not copied to its end{left}");
            self.shared.state.fail(&target.local, why);
        }
        Ok(())
    }

    async fn commit(&mut self, target: &Arc<LargeTarget>) -> Result<(), CopyFailure> {
        let is_own = |(last, _): &mut (_, _)| Arc::ptr_eq(last, target);
        self.unmapped.take_if(is_own);
        let result = target.commit(&self.shared.state).await;
        if let Err(why) = result {
            let wire = target.file.path.clone();
            return self.fail_large(target.file.id, wire, why, PartUse::None);
        }
        self.announced.remove(&target.file.id);
        self.shared.large.remove(target.file.id);
        Ok(())
    }

    /// Reports that a file could not be written, and drops its parts from now on.
    fn fail_large(
        &mut self,
        id: u64,
        wire: RelativePath,
        why: String,
        part: PartUse,
    ) -> Result<(), CopyFailure> {
        let local = self.local_path(&wire);
        let left = match self.shared.large.find(id) {
            FoundFile::Open(target) => target.left(),
            FoundFile::Abandoned | FoundFile::Unknown => None,
        };
        if self.drop_large(id, wire, part)? {
            let why = why + &left.unwrap_or_default();
            self.shared.state.fail(&local, why);
        }
        Ok(())
    }

    /// Drops the parts of a file from now on. Returns false if they are dropped already.
    fn drop_large(
        &mut self,
        id: u64,
        wire: RelativePath,
        part: PartUse,
    ) -> Result<bool, CopyFailure> {
        let found = self.shared.large.find(id);
        if !self.shared.large.abandon(id)? {
            return Ok(false);
        }
        self.map_written();
        if let FoundFile::Open(target) = found {
            target.give_up(part);
        }
        self.keep_unwritten(wire);
        Ok(true)
    }

    /// Returns the local path of a file; its own path if it has no place.
    fn local_path(&self, wire: &RelativePath) -> RelativePath {
        let entry = self.shared.state.placement.entry(wire);
        entry.map_or_else(|_| wire.clone(), |(folder, name)| folder.join(&name))
    }

    /// Keeps a range for the map, and joins it with the last one.
    fn note_written(&mut self, target: &Arc<LargeTarget>, range: ByteRange) {
        match &mut self.unmapped {
            Some((last, known)) if Arc::ptr_eq(last, target) && known.end == range.start => {
                known.end = range.end;
            }
            _ => {
                self.map_written();
                self.unmapped = Some((Arc::clone(target), range));
            }
        }
        let is_long = |(_, range): &(_, ByteRange)| range.end - range.start >= MAPPED_BYTES;
        if self.unmapped.as_ref().is_some_and(is_long) {
            self.map_written();
        }
    }

    /// Writes the range that was kept to the map of its file.
    pub(super) fn map_written(&mut self) {
        if let Some((target, range)) = self.unmapped.take() {
            target.map_range(range);
        }
    }
}
