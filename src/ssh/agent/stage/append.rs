//! The file of `>>`: written in place, after what is there.

use std::{fs::File, io, os::unix::fs::FileTypeExt, path::Path, time::Duration};

use rustix::{
    fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat},
    io::{Errno, retry_on_intr},
};

use crate::fd::Sink;

/// How often a FIFO is tried until a reader has opened it, as for `>`.
const FIFO_INTERVAL: Duration = Duration::from_millis(50);

/// A file that is being appended to.
pub(super) struct Append {
    sink: Sink,
    /// The length that it had; none for what has no length.
    length: Option<u64>,
}

impl Append {
    /// Opens the file, and makes it if it is missing. Waits until a FIFO has a reader.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    ///
    /// # Cancel safety
    ///
    /// An empty file may be left behind.
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

    /// The length that it had, in words that follow a failure.
    pub(super) fn before(&self) -> String {
        let before =
            |length| format!("; it had {length} bytes before, and what follows is incomplete");
        self.length.map(before).unwrap_or_default()
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// Those of fsync(2) and close(2).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: it goes on, and its result is lost.
    pub(super) async fn commit(self, fsync: bool) -> io::Result<()> {
        self.sink.close(fsync).await
    }
}

/// `None` for a FIFO without a reader: to wait for one in open(2) would block a thread for ever.
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
        // A device that cannot be polled must wait in its write, not fail with EAGAIN.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    Ok(Some(file))
}
