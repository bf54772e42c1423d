//! The file of `>` or `>>`.

use std::{io, path::Path};

use super::append::Append;
use crate::fd::{OutputTarget, Sink};

/// A file being written.
pub(super) enum OutputFile {
    /// Takes its name at the commit.
    Target(OutputTarget),
    /// Written in place, after what was there.
    Append(Append),
}

impl OutputFile {
    /// Opens what is to be written.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    ///
    /// # Cancel safety
    ///
    /// That of [`OutputTarget::create`]; an empty file may be left where one was to be appended to.
    pub(super) async fn open(path: &Path, append: bool) -> io::Result<Self> {
        if append {
            Append::open(path).await.map(Self::Append)
        } else {
            OutputTarget::create(path).await.map(Self::Target)
        }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        match self {
            Self::Target(target) => target.sink(),
            Self::Append(append) => append.sink(),
        }
    }

    /// What it was before, in words that follow a failure; nothing where it still is.
    pub(super) fn before(&self) -> String {
        match self {
            Self::Target(_) => String::new(),
            Self::Append(append) => append.before(),
        }
    }

    /// Closes it, and gives it its name.
    ///
    /// # Errors
    ///
    /// Those of [`OutputTarget::commit`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: it goes on, and its result is lost.
    pub(super) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Target(target) => target.commit(fsync).await,
            Self::Append(append) => append.commit(fsync).await,
        }
    }
}
