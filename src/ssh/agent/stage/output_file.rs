//! The output file of a stage: of `>` or `>>`.

use std::{io, path::Path};

use super::{append::Append, path::refuse_own_descriptor};
use crate::fd::{OutputTarget, Sink};

/// An output file while it is written.
pub(super) enum OutputFile {
    /// The file of `>`: it gets its name at the commit.
    Target(OutputTarget),
    /// The file of `>>`: it is written in place, after its end.
    Append(Append),
}

impl OutputFile {
    /// Opens the file: for `>>` if `append` is true, else for `>`.
    ///
    /// # Errors
    ///
    /// Those of open(2), and that of [`refuse_own_descriptor`].
    ///
    /// # Cancel safety
    ///
    /// That of [`OutputTarget::create`]. For `>>`, dropping the future may leave an empty file behind.
    pub(super) async fn open(path: &Path, append: bool) -> io::Result<Self> {
        refuse_own_descriptor(path)?;
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

    /// Returns the state that a failure leaves the file in, in words that follow the reason. Returns an empty text if the
    /// old file is then unchanged.
    pub(super) fn before(&self) -> String {
        match self {
            Self::Target(target) => target.left(),
            Self::Append(append) => append.before(),
        }
    }

    /// Closes the file, and gives it its name.
    ///
    /// # Errors
    ///
    /// Those of [`OutputTarget::commit`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: after the future is dropped the commit goes on, and its result is lost.
    pub(super) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Target(target) => target.commit(fsync).await,
            Self::Append(append) => append.commit(fsync).await,
        }
    }
}
