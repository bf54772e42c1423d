//! The file of `>>`: bytes are written in place, after the end of the file.

use std::{fs::File, io, os::unix::fs::FileTypeExt, path::Path, time::Duration};

use rustix::{
    fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat},
    io::{Errno, retry_on_intr},
};

use crate::fd::Sink;

/// The pause between two attempts to open a FIFO that has no reader yet. It is the same as for `>`.
const FIFO_INTERVAL: Duration = Duration::from_millis(50);

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
        let file = loop {
            let path = path.to_owned();
            let opening = tokio::task::spawn_blocking(move || try_open(&path));
            if let Some(file) = opening.await.map_err(io::Error::other)?? {
                break file;
            }
            tokio::time::sleep(FIFO_INTERVAL).await;
        };
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

/// Opens the file without waiting. Returns `None` for a FIFO without a reader: waiting for one in open(2) would block a
/// thread forever.
fn try_open(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| openat(CWD, path, flags, Mode::from_raw_mode(0o666)));
    let file = match opened {
        Err(Errno::NXIO) if path.metadata()?.file_type().is_fifo() => return Ok(None),
        opened => File::from(opened?),
    };
    if !file.metadata()?.file_type().is_fifo() {
        // A write to a device that cannot be polled must block: with O_NONBLOCK it would fail with EAGAIN.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    Ok(Some(file))
}
