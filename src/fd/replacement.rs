//! Small files that are replaced as a whole.

use std::{fs::File, io, io::Write, os::fd::OwnedFd, path::Path};

use rustix::fs::{Mode, fchmod};

use super::target::create_beside;

/// Replaces the file at `path` with a file that has this content and this mode, whatever the umask is. A reader finds
/// either the old file or the new one. The file may be lost by a power failure. Blocks.
///
/// # Errors
///
/// Fails if the directory cannot be written, or if `path` is something other than a regular file. The old file is then
/// unchanged, and no other file is left behind.
pub(crate) fn replace_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    let (fd, pending) = create_beside(path, Some(mode))?;
    fchmod(&fd, mode)?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    pending.commit(OwnedFd::from(file), false)
}
