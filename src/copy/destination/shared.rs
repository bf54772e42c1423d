//! What the lanes and the control of a destination share.

use std::sync::Arc;

use super::{
    claims::{ClaimRefusal, CopyClaims},
    large::{LargeTable, target::LargeTarget},
    state::DestinationState,
    temporary_name::TemporaryName,
    tree::{
        folders::FolderTable,
        links::{HardLinkSpool, SpooledLink},
    },
};
use crate::copy::{context::CopyFailure, path::RelativePath, record::LargeFile};

/// What the lanes and the control of a destination share.
pub(super) struct DestinationShared {
    /// How and where they write, and what is done so far.
    pub(super) state: DestinationState,
    /// The folders that the source has named.
    pub(super) folders: FolderTable,
    /// The files that arrive in parts.
    pub(super) large: LargeTable,
    /// The hard links that are made at the end.
    pub(super) links: HardLinkSpool,
    /// What the copy of a server claims; none in an agent.
    claims: Option<CopyClaims>,
}

impl DestinationShared {
    /// Returns what is shared by a destination that has written nothing.
    pub(super) fn new(state: DestinationState, claims: Option<CopyClaims>) -> Self {
        Self {
            state,
            folders: FolderTable::default(),
            large: LargeTable::default(),
            links: HardLinkSpool::default(),
            claims,
        }
    }

    /// Opens a file that was announced: see [`LargeTable::open`].
    pub(super) fn open_large(
        &self,
        file: &LargeFile,
    ) -> Result<Result<Arc<LargeTarget>, String>, CopyFailure> {
        self.large.open(&self.state, &self.folders, file)
    }

    /// Makes a hard link: see [`HardLinkSpool::make`].
    pub(super) fn make_link(
        &self,
        temporary: &mut TemporaryName,
        link: &SpooledLink,
    ) -> Result<(), String> {
        let links = &self.links;
        links.make(&self.state, &self.folders, temporary, link)
    }

    /// Returns true if a local path may be written, which a copy of a server claims. If another copy writes the target that
    /// the path is in, the target is reported once.
    pub(super) fn may_write(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        let target = self.state.placement.target_of(local);
        target.is_none_or(|target| self.claim(claims, &target))
    }

    /// Returns true if entries of the folder at a local path may be removed.
    pub(super) fn may_mirror(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        // Entries of the place itself may be the targets of other copies.
        let target = self.state.placement.target_of(local).unwrap_or_default();
        self.claim(claims, &target)
    }

    /// Returns true if the folder at a local path, which is open now, may be written. The copy may have made the target
    /// that the folder is in.
    pub(super) fn may_write_in(&self, local: &RelativePath) -> bool {
        let Some(claims) = &self.claims else {
            return true;
        };
        let target = self.state.placement.target_of(local);
        target.is_none_or(|target| self.has_claim(&target, claims.claim_made(&target)))
    }

    /// Returns true if each entry of the folder at a local path is claimed on its own.
    pub(super) fn has_targets_in(&self, local: &RelativePath) -> bool {
        self.claims.is_some() && self.state.placement.target_of(local).is_none()
    }

    /// Releases the claims of a copy that has ended.
    pub(super) fn release_claims(&self) {
        if let Some(claims) = &self.claims {
            claims.release();
        }
    }

    fn claim(&self, claims: &CopyClaims, target: &RelativePath) -> bool {
        let open_place = || {
            let folder = target.split_last().map(|(folder, _)| folder);
            let opened = self
                .folders
                .open(&self.state, &folder.unwrap_or_default(), None, &[]);
            opened.map(|folder| folder.fd)
        };
        self.has_claim(target, claims.claim(target, open_place))
    }

    fn has_claim(&self, target: &RelativePath, claimed: Result<(), ClaimRefusal>) -> bool {
        match claimed {
            Ok(()) => return true,
            Err(Some(why)) => self.state.fail(target, why),
            Err(None) => {}
        }
        false
    }
}
