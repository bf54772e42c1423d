//! Writes a new file as fast as possible.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::atomic::AtomicBool,
    time::Duration,
};

use data_encoding::HEXLOWER;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, fstatvfs, openat, unlinkat},
    io::Errno,
};

use super::{BUFFER_BYTES, StorageAmount, StorageClock, check_stop};

/// The part of the free space that is written at most, as a divisor.
const FREE_PART: u64 = 2;

/// Writes a new file in `directory` for `limit`, or until it has half of the free space. The time until its bytes are on
/// the disk counts. The file has no name, so that nothing of it is left when this process ends.
pub(super) fn measure(
    directory: &Path,
    limit: Duration,
    is_stopped: &AtomicBool,
) -> io::Result<StorageAmount> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, directory, flags, Mode::empty())?;
    let mut file = File::from(create(&directory)?);
    let space = fstatvfs(&file)?;
    let most = space.f_bavail.saturating_mul(space.f_frsize) / FREE_PART;
    let buffer = noise(BUFFER_BYTES);
    let count = buffer.len() as u64;
    if count > most {
        return Err(Errno::NOSPC.into());
    }
    let clock = StorageClock::start();
    let mut total = 0_u64;
    while total == 0 || (clock.began.elapsed() < limit && total + count <= most) {
        check_stop(is_stopped)?;
        file.write_all(&buffer)?;
        total += count;
    }
    match file.sync_all() {
        // A file system of a user-space server need not know fsync.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
        result => result?,
    }
    Ok(clock.stop(total))
}

/// Creates a file without a name. On a file system that knows no such files, the name is removed at once.
fn create(directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::from(0o600);
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    match openat(directory, ".", flags, mode) {
        // Kernels and file systems that do not know the flag answer EISDIR.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
            create_named(directory, mode)
        }
        result => result,
    }
}

/// Creates a file under a random name, and removes the name.
fn create_named(directory: impl AsFd, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| Errno::IO)?;
    let name = format!(".rdperf-{}", HEXLOWER.encode(&random));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(&directory, name.as_str(), flags, mode)?;
    unlinkat(&directory, name.as_str(), AtFlags::empty())?;
    Ok(file)
}

/// Returns bytes that a file system cannot compress: a xorshift sequence.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(bytes / 8).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_system_without_nameless_files_keeps_no_name_either() {
        let directory = tempfile::tempdir().unwrap();
        let opened = File::open(directory.path()).unwrap();
        let file = create_named(&opened, Mode::from(0o600)).unwrap();
        File::from(file).write_all(b"bytes").unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_bytes_do_not_repeat() {
        let bytes = noise(BUFFER_BYTES);
        assert_eq!(bytes.len(), BUFFER_BYTES);
        let mut words: Vec<&[u8]> = bytes.chunks(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), BUFFER_BYTES / 8);
    }
}
