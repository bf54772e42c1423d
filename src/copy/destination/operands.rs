//! Finds copies onto themselves, before anything is written: the operands of the source are compared with what their
//! copies would replace, and with the directories that the copies go into.

use std::collections::HashSet;

use rustix::fs::{AtFlags, FileType, Stat, statat};

use super::{placement::Placement, state::DestinationState};
use crate::{
    copy::{budget::SET_ENTRY_BYTES, identity::SourceOperand, job::CopyError, path::RelativePath},
    fd::EntryIdentity,
    printable::escaped,
};

/// What a destination knows of the operands of its source.
#[derive(Debug, Default)]
pub(super) struct ComparedOperands {
    /// The directory that receives the copy, and those that it is in.
    place: Option<Vec<EntryIdentity>>,
    /// With `--delete`: the directories that become equal to those of the source.
    mirrored: HashSet<EntryIdentity>,
    /// With `--delete`: the directories that operands are in.
    sources: HashSet<EntryIdentity>,
}

impl ComparedOperands {
    /// Compares operands with their copies.
    /// Fails with the reason for the user if a copy would replace or remove its own source, or would be in it.
    pub(super) fn compare(
        &mut self,
        state: &DestinationState,
        operands: &[SourceOperand],
    ) -> Result<(), CopyError> {
        for operand in operands {
            self.compare_one(state, operand)?;
        }
        Ok(())
    }

    fn compare_one(
        &mut self,
        state: &DestinationState,
        operand: &SourceOperand,
    ) -> Result<(), CopyError> {
        let placement = &state.placement;
        let local = placement.copy_of(&operand.typed);
        let refuse = |why: String| {
            state.refuse(&why);
            CopyError::Local(why)
        };
        let source = escaped(&operand.typed);
        let copy = escaped(&placement.shown(&local));
        let existing = Existing::at(placement, &local);
        if existing.is(operand) {
            let kind = if operand.is_tree { "directory" } else { "file" };
            return Err(refuse(format!(
                "{source} and {copy} are the same {kind}; nothing was done"
            )));
        }
        if !operand.is_tree {
            if let Some(why) = placement.refuses_files() {
                return Err(refuse(why));
            }
            return self.keep_sources(state, operand);
        }
        let place = self
            .place
            .get_or_insert_with(|| EntryIdentity::chain(placement.root(), |_| false));
        // A filter may leave the destination out.
        if state.filter.is_empty() && place.contains(&operand.own) {
            return Err(refuse(format!(
                "{source} cannot be copied into itself: {copy} is in it; nothing was done"
            )));
        }
        self.keep_sources(state, operand)?;
        if let Some(own) = existing.own.filter(|_| state.options.delete) {
            state.keep(SET_ENTRY_BYTES)?;
            self.mirrored.insert(own);
        }
        if self.mirrored.is_disjoint(&self.sources) {
            return Ok(());
        }
        Err(refuse(format!(
            "--delete would remove a source: it is in {copy}, which becomes equal to {source}; nothing was done"
        )))
    }

    /// Keeps the directories that an operand is in.
    fn keep_sources(
        &mut self,
        state: &DestinationState,
        operand: &SourceOperand,
    ) -> Result<(), CopyError> {
        for directory in &operand.chain {
            if !self.sources.contains(directory) {
                state.keep(SET_ENTRY_BYTES)?;
                self.sources.insert(*directory);
            }
        }
        Ok(())
    }
}

/// What the place has already under the name of a copy.
struct Existing {
    own: Option<EntryIdentity>,
    /// What it leads to, if it is a symbolic link.
    led_to: Option<EntryIdentity>,
}

impl Existing {
    fn at(placement: &Placement, local: &RelativePath) -> Self {
        let path = match local.as_bytes() {
            [] => b".",
            path => path,
        };
        let stat = |flags| statat(placement.root(), path, flags).ok();
        let own = stat(AtFlags::SYMLINK_NOFOLLOW);
        let is_link = |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_symlink();
        // In a served directory a link may be of any client, and lead anywhere.
        let is_followed = own.as_ref().is_some_and(is_link) && !placement.is_served();
        let led_to = is_followed.then(|| stat(AtFlags::empty())).flatten();
        let identity = |stat: Option<Stat>| stat.and_then(|stat| EntryIdentity::of(&stat));
        Self {
            own: identity(own),
            led_to: identity(led_to),
        }
    }

    /// Returns true if the operand is what would be replaced, or if a link would be copied onto what it leads to.
    fn is(&self, operand: &SourceOperand) -> bool {
        let is = |one: Option<EntryIdentity>, other| one.is_some() && one == other;
        is(self.own, Some(operand.own))
            || is(self.led_to, Some(operand.own))
            || is(self.own, operand.leads_to)
    }
}
