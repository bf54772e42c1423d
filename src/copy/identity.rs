//! Which entry an operand is, whatever path, link or host leads to it: so a copy onto itself is found before anything is
//! written.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat};
use serde::{Deserialize, Serialize};

use super::{
    bounded::at_most,
    order::CopyOptions,
    path::{BaseDirectory, typed_folder},
};
use crate::fd::EntryIdentity;

/// The most directories that a source names as those an operand is in, the nearest ones.
const MAX_CHAIN: usize = 256;

impl EntryIdentity {
    /// Returns the identities of a directory and of those that it is in, the nearest first, up to one that `is_last`.
    pub(crate) fn chain(directory: impl AsFd, is_last: impl Fn(&OwnedFd) -> bool) -> Vec<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut chain = Vec::new();
        let mut next = openat(directory, ".", flags, Mode::empty());
        while let Ok(opened) = next {
            let own = fstat(&opened).ok().and_then(|stat| Self::of(&stat));
            // The root is in itself.
            let Some(own) = own.filter(|own| chain.last() != Some(own)) else {
                break;
            };
            chain.push(own);
            if chain.len() == MAX_CHAIN || is_last(&opened) {
                break;
            }
            next = openat(&opened, "..", flags, Mode::empty());
        }
        chain
    }
}

/// An operand of a source, for the destination to compare with its copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceOperand {
    /// The path as the user typed it.
    pub(crate) typed: Vec<u8>,
    /// True if the operand is a directory that is copied with all that is in it.
    pub(crate) is_tree: bool,
    /// What is copied.
    pub(crate) own: EntryIdentity,
    /// What a symbolic link leads to that is copied as a link.
    pub(crate) leads_to: Option<EntryIdentity>,
    /// With `--delete`: the directory that the operand is, and those that it is in, the nearest first.
    #[serde(deserialize_with = "at_most::<MAX_CHAIN, _, _>")]
    pub(crate) chain: Vec<EntryIdentity>,
}

impl SourceOperand {
    /// Looks at an operand as `flags` say. Returns none if it cannot be looked at, or is a directory that is not copied:
    /// the walk names it.
    pub(crate) fn of(
        base: &BaseDirectory,
        typed: &[u8],
        flags: AtFlags,
        options: &CopyOptions,
    ) -> Option<Self> {
        let stat = base.stat(typed, flags).ok()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_dir() && !(options.recursive || options.archive) {
            return None;
        }
        let led_to = || EntryIdentity::of(&base.stat(typed, AtFlags::empty()).ok()?);
        let folder = || {
            let path = match typed_folder(typed) {
                _ if kind.is_dir() => typed,
                [] => b".",
                folder => folder,
            };
            base.open(path, OFlags::PATH | OFlags::DIRECTORY).ok()
        };
        let chain = |folder| EntryIdentity::chain(folder, |opened| base.is_root(opened));
        let folder = options.delete.then(folder).flatten();
        Some(Self {
            typed: typed.to_vec(),
            is_tree: kind.is_dir(),
            own: EntryIdentity::of(&stat)?,
            leads_to: kind.is_symlink().then(led_to).flatten(),
            chain: folder.map(chain).unwrap_or_default(),
        })
    }
}
