//! A file that is open for sending.

use std::{ffi::CStr, io::Write, os::fd::OwnedFd};

use rustix::{
    fs::{FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, seek},
    io::{Errno, read, retry_on_intr},
};

use super::{jobs::SourceFolder, large_file::is_same, state::unreadable};
use crate::copy::{
    metadata::{content_size, size},
    nameless::NamelessFile,
};

/// A file with fewer bytes in holes is sent as if it had none: a file system that counts blocks of 4 KiB shows no less.
const MIN_HOLE: u64 = 4096;

/// The bytes that are read at a time from a file whose size is not known.
const SPOOLED_BYTES: usize = 256 << 10;

pub(crate) struct OpenedFile {
    pub(crate) fd: OwnedFd,
    /// What fstat(2) said after it was opened.
    pub(crate) stat: Stat,
}

/// What was read of a file of which no more bytes than its size were expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WholeRead {
    /// This many bytes, up to the end of the file.
    All(usize),
    /// This many bytes: those that the file had when it was opened. It has become longer.
    Longer(usize),
    /// The size that the system tells is not the number of bytes that the file has: files of `/proc` have size 0, files
    /// of `/sys` that of a page. There was no room for all bytes.
    Unsized,
}

/// Why a small file could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadFault {
    /// The file became shorter: its contents are not whole.
    Shorter,
    /// read(2) failed.
    Failed(Errno),
}

impl OpenedFile {
    /// Opens a file of a folder. No FIFO or device is waited for, and no link is followed that was not named.
    /// `quiet_reads` is cleared if the process may not read files without changing their times of access.
    pub(crate) fn open(
        folder: &SourceFolder,
        name: &CStr,
        quiet_reads: &mut bool,
    ) -> Result<Self, String> {
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        if !folder.follow {
            flags |= OFlags::NOFOLLOW;
        }
        let open = |flags| retry_on_intr(|| openat(&folder.fd, name, flags, Mode::empty()));
        let opened = if *quiet_reads {
            match open(flags | OFlags::NOATIME) {
                Err(Errno::PERM) => {
                    *quiet_reads = false;
                    open(flags)
                }
                result => result,
            }
        } else {
            open(flags)
        };
        let fd = opened.map_err(unreadable)?;
        let stat = fstat(&fd).map_err(unreadable)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            Ok(Self { fd, stat })
        } else {
            Err("was replaced by something else while it was copied".to_owned())
        }
    }

    /// Returns true if the file has a hole that is worth keeping.
    pub(crate) fn is_sparse(&self) -> bool {
        let size = size(&self.stat);
        if size - content_size(&self.stat) < MIN_HOLE {
            return false;
        }
        // Compressed files have few blocks as well, and files of `/sys` none.
        let has_hole = seek(&self.fd, SeekFrom::Hole(0)).is_ok_and(|hole| hole < size);
        // The search for a hole has moved the position, from which a small file is read.
        seek(&self.fd, SeekFrom::Start(0)).is_ok() && has_hole
    }

    /// Reads the whole file into `room`, which has one byte more than the file.
    ///
    /// A read that is shorter than the room is the end of a plain file, so one call suffices.
    /// Fails if the file cannot be read to the size that it had.
    pub(crate) fn read_whole(&self, room: &mut [u8]) -> Result<WholeRead, ReadFault> {
        let expected = usize::try_from(size(&self.stat)).unwrap_or(usize::MAX);
        // A file of 0 bytes in /proc has contents.
        let most = match expected {
            0 => room.len(),
            expected => room.len().min(expected + 1),
        };
        let mut filled = 0;
        while filled < most {
            let read = retry_on_intr(|| read(&self.fd, &mut room[filled..most]));
            let count = read.map_err(ReadFault::Failed)?;
            filled += count;
            if count == 0 || filled == expected {
                break;
            }
        }
        if filled == expected || (expected == 0 && filled < most) {
            return Ok(WholeRead::All(filled));
        }
        // A file that the kernel makes up has no blocks.
        let is_made_up = content_size(&self.stat) == 0
            && fstat(&self.fd).is_ok_and(|stat| is_same(&stat, &self.stat));
        match (filled < expected, is_made_up) {
            (true, false) => Err(ReadFault::Shorter),
            (true, true) => Ok(WholeRead::All(filled)),
            (false, false) if expected > 0 => Ok(WholeRead::Longer(expected)),
            (false, _) => Ok(WholeRead::Unsized),
        }
    }

    /// Reads a file to its end, whatever its size is said to be, and returns its contents as a file without a name.
    /// Cancel safe: the contents are dropped.
    pub(crate) async fn read_to_end(&self) -> Result<Self, String> {
        let cannot_keep =
            |error: std::io::Error| format!("cannot be kept until it is sent: {error}");
        let mut kept = NamelessFile::make(None).map_err(cannot_keep)?.file;
        let mut buffer = vec![0; SPOOLED_BYTES];
        seek(&self.fd, SeekFrom::Start(0)).map_err(unreadable)?;
        loop {
            let count = retry_on_intr(|| read(&self.fd, &mut buffer[..])).map_err(unreadable)?;
            if count == 0 {
                break;
            }
            kept.write_all(&buffer[..count]).map_err(cannot_keep)?;
            tokio::task::yield_now().await;
        }
        let fd = OwnedFd::from(kept);
        let stat = fstat(&fd).map_err(unreadable)?;
        Ok(Self { fd, stat })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

    use rustix::fs::{CWD, mknodat};

    use super::*;
    use crate::copy::source::{jobs::SourceRoot, walk::DIRECTORY_FLAGS};

    fn folder(path: &Path) -> SourceFolder {
        let root = SourceRoot {
            open_path: Vec::new(),
            identity: (0, 0),
        };
        let fd = openat(CWD, path, DIRECTORY_FLAGS, Mode::empty()).unwrap();
        SourceFolder::top(fd, Arc::new(root), Vec::new())
    }

    #[test]
    fn only_a_plain_file_is_opened() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), b"x").unwrap();
        symlink("file", place.path().join("link")).unwrap();
        fs::create_dir(place.path().join("folder")).unwrap();
        let fifo = place.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let folder = folder(place.path());
        let open = |name| OpenedFile::open(&folder, name, &mut true).map(|_| ());
        assert_eq!(open(c"file"), Ok(()));
        for name in [c"link", c"folder", c"fifo"] {
            assert!(open(name).unwrap_err().contains("was replaced"));
        }
        assert!(open(c"missing").unwrap_err().contains("vanished"));
    }

    #[test]
    fn a_file_that_changes_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, [7; 1000]).unwrap();
        let folder = folder(place.path());
        let open = || OpenedFile::open(&folder, c"file", &mut true).unwrap();
        let mut room = [0; 5000];
        assert_eq!(open().read_whole(&mut room), Ok(WholeRead::All(1000)));
        let opened = open();
        fs::write(&path, [7; 2000]).unwrap();
        assert_eq!(opened.read_whole(&mut room), Ok(WholeRead::Longer(1000)));
        let opened = open();
        fs::write(&path, [7; 10]).unwrap();
        assert_eq!(opened.read_whole(&mut room), Err(ReadFault::Shorter));
        assert!(!open().is_sparse());
        fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        assert!(open().is_sparse());
    }

    #[test]
    fn a_file_that_the_kernel_makes_up_has_the_bytes_that_can_be_read() {
        // Its size is that of a page.
        let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        if path.exists() {
            let folder = folder(path.parent().unwrap());
            let opened = OpenedFile::open(&folder, c"enabled", &mut true).unwrap();
            assert!(!opened.is_sparse());
            let contents = fs::read(path).unwrap();
            let mut room = [0; 5000];
            let read = opened.read_whole(&mut room);
            assert_eq!(read, Ok(WholeRead::All(contents.len())));
            assert_eq!(room[..contents.len()], contents);
        }
        // Its size is 0, and it has more bytes than the room.
        let folder = folder(Path::new("/proc/self"));
        let opened = OpenedFile::open(&folder, c"status", &mut true).unwrap();
        assert_eq!(opened.read_whole(&mut [0; 10]), Ok(WholeRead::Unsized));
        let kept = futures::executor::block_on(opened.read_to_end());
        let kept = kept.unwrap_or_else(|why| panic!("{why}"));
        assert!(size(&kept.stat) > 100);
    }
}
