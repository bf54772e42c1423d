//! Where rdrecv puts the data.

use std::{io, path::Path};

use crate::fd::{OutputTarget, Sink};

/// stdout, or a file as `>` of rdpipe writes it.
pub(crate) enum Output {
    /// The standard output.
    Stdout(Sink),
    /// A file, replaced only at the end where that is safe.
    File(OutputTarget),
}

impl Output {
    /// Opens `path`, or takes stdout where there is none.
    ///
    /// # Errors
    ///
    /// What the system says; a target that exists is untouched then.
    pub(crate) async fn open(path: Option<&Path>) -> io::Result<Self> {
        match path {
            None => Sink::stdout().map(Self::Stdout),
            Some(path) => OutputTarget::create(path).await.map(Self::File),
        }
    }

    /// Where the bytes go.
    pub(crate) fn sink(&mut self) -> &mut Sink {
        match self {
            Self::Stdout(sink) => sink,
            Self::File(target) => target.sink(),
        }
    }

    /// The commit point: after it the output is whole, before it a file is as it was.
    ///
    /// # Errors
    ///
    /// Of the last writes, which some file systems report only now, and of the rename.
    pub(crate) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Stdout(sink) => sink.close(fsync).await,
            Self::File(target) => target.commit(fsync).await,
        }
    }
}
