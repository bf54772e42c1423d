//! The file of `>>`: bytes are written in place, after the end of the file.

use std::{fs::File, io, path::Path};

use rustix::fs::OFlags;

use crate::fd::{Sink, open_in_place};

/// A file that is being appended to.
pub(super) struct Append {
    sink: Sink,
    /// The length of the file before it was opened; none if it is not a regular file.
    length: Option<u64>,
}

impl Append {
    /// Opens the file, and creates it if it is missing. For a FIFO, waits until it has a reader.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty file behind.
    pub(super) async fn open(path: &Path) -> io::Result<Self> {
        let file = File::from(open_in_place(path, OFlags::APPEND | OFlags::CREATE).await?);
        let metadata = file.metadata()?;
        let length = metadata.is_file().then_some(metadata.len());
        let sink = Sink::new(file.into(), path.display().to_string())?;
        Ok(Self { sink, length })
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// Returns the length of the file before it was opened, in words that follow a failure. Returns an empty text if
    /// it is not a regular file.
    pub(super) fn before(&self) -> String {
        let before = |length| {
            format!("; it had {length} bytes before, and the bytes after those are incomplete")
        };
        self.length.map(before).unwrap_or_default()
    }

    /// Closes the file, after an fsync if requested.
    ///
    /// # Errors
    ///
    /// Those of fsync(2) and close(2).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: after the future is dropped the close goes on, and its result is lost.
    pub(super) async fn commit(self, fsync: bool) -> io::Result<()> {
        self.sink.close(fsync).await
    }
}
