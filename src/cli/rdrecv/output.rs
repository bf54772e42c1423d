//! The output of rdrecv: stdout or a file.

use std::{io, path::Path};

use crate::fd::{OutputTarget, Sink};

/// The output of rdrecv: stdout, or a file that is written as by `>` of rdpipe.
pub(crate) enum Output {
    /// The standard output.
    Stdout(Sink),
    /// A file; where it is safe, an existing file is replaced only at the end.
    File(OutputTarget),
}

impl Output {
    /// Opens `path`, or stdout if there is no path.
    ///
    /// # Errors
    ///
    /// Returns the error of the system. A file that exists is unchanged then.
    pub(crate) async fn open(path: Option<&Path>) -> io::Result<Self> {
        match path {
            None => Sink::stdout().map(Self::Stdout),
            Some(path) => OutputTarget::create(path).await.map(Self::File),
        }
    }

    /// Returns the sink that writes the bytes.
    pub(crate) fn sink(&mut self) -> &mut Sink {
        match self {
            Self::Stdout(sink) => sink,
            Self::File(target) => target.sink(),
        }
    }

    /// Completes the output. A file that is to be replaced is unchanged before this call; after it the output is whole.
    ///
    /// # Errors
    ///
    /// Returns errors of the last writes, which some file systems report only now, and of the rename.
    pub(crate) async fn commit(self, fsync: bool) -> io::Result<()> {
        match self {
            Self::Stdout(sink) => sink.close(fsync).await,
            Self::File(target) => target.commit(fsync).await,
        }
    }
}
