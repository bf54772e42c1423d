//! What the source or the sink of a host can do alone: the bytes per second of a file or a disk.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use data_encoding::HEXLOWER;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Advice, AtFlags, CWD, Mode, OFlags, fadvise, fstatvfs, open, openat, unlinkat},
    io::Errno,
};

use crate::{
    perf::{
        facts::{HostRoots, trimmed},
        messages::{BandwidthResult, HostLoad, NetworkCounters, StorageTask, TaskResult},
    },
    ssh::quote,
};

/// The size of one read or write. With large ones the system calls take a small part of the time.
const BUFFER_BYTES: usize = 1 << 20;

/// Measures a file or a directory of this host. Blocks the thread until the time of the task has passed, or
/// `is_stopped` is set. Bytes of a new file may take longer to reach the disk.
/// The error names the path.
pub(crate) fn measure_storage(
    task: &StorageTask,
    is_stopped: &AtomicBool,
) -> Result<TaskResult, String> {
    let amount = match task {
        StorageTask::Read { path, millis } => {
            let path = Path::new(OsStr::from_bytes(path));
            measure_reading(path, limit(*millis), is_stopped)
                .map_err(|error| sentence("read", path, &error))?
        }
        StorageTask::Write { path, millis } => {
            let path = Path::new(OsStr::from_bytes(path));
            measure_writing(path, limit(*millis), is_stopped)
                .map_err(|error| sentence("write a file in", path, &error))?
        }
    };
    let is_read = matches!(task, StorageTask::Read { .. });
    Ok(TaskResult::Bandwidth(BandwidthResult {
        bytes_sent: if is_read { 0 } else { amount.bytes },
        bytes_received: if is_read { amount.bytes } else { 0 },
        operations: 0,
        nanos: nanos(amount.time),
        cpu_nanos: amount.cpu_nanos,
        counters: NetworkCounters::default(),
        load: HostLoad::default(),
        transport: None,
    }))
}

/// The bytes that were read or written.
struct StorageAmount {
    bytes: u64,
    time: Duration,
    cpu_nanos: u64,
}

/// Measures the time and the processor time of this thread from its creation on.
struct StorageClock {
    began: Instant,
    cpu_nanos: u64,
}

impl StorageClock {
    fn start() -> Self {
        Self {
            cpu_nanos: thread_nanos(),
            began: Instant::now(),
        }
    }

    /// Returns the result of a measurement that ends now.
    fn stop(&self, bytes: u64) -> StorageAmount {
        StorageAmount {
            bytes,
            time: self.began.elapsed(),
            cpu_nanos: thread_nanos().saturating_sub(self.cpu_nanos),
        }
    }
}

/// Returns the processor time of this thread in nanoseconds; 0 if the kernel does not count it.
fn thread_nanos() -> u64 {
    let path = HostRoots::default().proc.join("thread-self/schedstat");
    let text = trimmed(&path).unwrap_or_default();
    let nanos = text.split_whitespace().next();
    nanos.and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

fn limit(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Fails if the measurement was stopped.
fn check_stop(is_stopped: &AtomicBool) -> io::Result<()> {
    if is_stopped.load(Ordering::Relaxed) {
        return Err(io::Error::other("the measurement was stopped"));
    }
    Ok(())
}

fn sentence(what: &str, path: &Path, error: &io::Error) -> String {
    format!(
        "cannot {what} {}: {error}",
        quote::display([path.as_os_str()])
    )
}

/// How often a reader that waits for bytes looks whether it was stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Reads a file for at most `limit`. Starts a regular file again at its end. The time begins when the first bytes can
/// be read, for which it waits `limit` too.
fn measure_reading(
    path: &Path,
    limit: Duration,
    is_stopped: &AtomicBool,
) -> io::Result<StorageAmount> {
    // A FIFO without a writer must not block: the measurement could not be stopped.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = File::from(open(path, flags, Mode::empty())?);
    let is_regular = file.metadata()?.is_file();
    if is_regular {
        // Only clean pages can be dropped from the page cache.
        let _ = file.sync_data();
    }
    forget(&file);
    let mut buffer = vec![0; BUFFER_BYTES];
    let opened = Instant::now();
    while !is_readable(&file)? {
        check_stop(is_stopped)?;
        if opened.elapsed() >= limit {
            let text = format!("nothing could be read within {limit:?}");
            return Err(io::Error::other(text));
        }
    }
    let clock = StorageClock::start();
    let (mut total, mut bytes_of_pass) = (0_u64, 0_u64);
    while clock.began.elapsed() < limit {
        check_stop(is_stopped)?;
        match file.read(&mut buffer) {
            Ok(0) if is_regular && bytes_of_pass > 0 => {
                file.rewind()?;
                forget(&file);
                bytes_of_pass = 0;
            }
            Ok(0) => break,
            Ok(count) => {
                total += count as u64;
                bytes_of_pass += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                is_readable(&file)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if total == 0 {
        return Err(io::Error::other("it has no bytes"));
    }
    Ok(clock.stop(total))
}

/// Drops the file from the page cache, so that its bytes come from the disk. A FIFO has none, and the kernel refuses.
fn forget(file: &File) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Waits at most [`STOP_INTERVAL`]. Returns true if bytes, an end or an error can be read.
fn is_readable(file: &File) -> io::Result<bool> {
    let timeout = Timespec::try_from(STOP_INTERVAL).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The part of the free space that is written at most, as a divisor.
const FREE_PART: u64 = 2;

/// Writes a new file in `directory` for `limit`, or until it has half of the free space. The time until its bytes are
/// on the disk counts. The file has no name, so that nothing of it is left when this process ends.
fn measure_writing(
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
    use std::{fs, io::Write, os::unix::ffi::OsStringExt, thread};

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tempfile::TempDir;

    use super::*;

    fn run(task: &StorageTask) -> Result<BandwidthResult, String> {
        match measure_storage(task, &AtomicBool::new(false))? {
            TaskResult::Bandwidth(result) => Ok(result),
            other => panic!("{other:?}"),
        }
    }

    fn read(path: &Path, millis: u32) -> StorageTask {
        let path = path.as_os_str().as_bytes().to_vec();
        StorageTask::Read { path, millis }
    }

    fn write(path: &Path, millis: u32) -> StorageTask {
        let path = path.as_os_str().as_bytes().to_vec();
        StorageTask::Write { path, millis }
    }

    fn directory() -> TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_short_file_is_read_again_and_again() {
        let directory = directory();
        let path = directory.path().join("short");
        fs::write(&path, vec![7; 3000]).unwrap();
        // A busy machine may not get to a second read in a short time.
        let (millis, result) = (0..12)
            .map(|doubled| (50 << doubled, run(&read(&path, 50 << doubled)).unwrap()))
            .find(|(_, result)| result.bytes_received > 3000)
            .expect("it is read again");
        assert!(result.nanos >= millis * 1_000_000);
        assert_eq!(result.bytes_sent, 0);
    }

    #[test]
    fn a_device_is_read_until_the_time_has_passed() {
        let result = run(&read(Path::new("/dev/zero"), 20)).unwrap();
        assert!(result.bytes_received > 0 && result.nanos >= 20_000_000);
    }

    #[test]
    fn a_fifo_is_read_to_its_end() {
        let directory = directory();
        let path = directory.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let writer = {
            let path = path.clone();
            thread::spawn(move || {
                let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
                file.write_all(&vec![1; 200_000]).unwrap();
            })
        };
        let result = run(&read(&path, 60_000)).unwrap();
        writer.join().unwrap();
        assert_eq!(result.bytes_received, 200_000);
    }

    #[test]
    fn a_fifo_without_a_writer_ends_with_a_sentence() {
        let directory = directory();
        let path = directory.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let error = run(&read(&path, 20)).unwrap_err();
        assert!(
            error.ends_with("nothing could be read within 20ms"),
            "{error}"
        );
    }

    #[test]
    fn a_new_file_is_written_and_leaves_nothing_behind() {
        let directory = directory();
        let result = run(&write(directory.path(), 30)).unwrap();
        assert!(result.bytes_sent > 0 && result.nanos >= 30_000_000);
        assert_eq!(result.bytes_received, 0);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn errors_name_the_path() {
        let directory = directory();
        let missing = directory.path().join("no such file");
        let error = run(&read(&missing, 10)).unwrap_err();
        assert!(error.starts_with("cannot read '/"), "{error}");
        assert!(error.contains("no such file': No such file"), "{error}");
        let error = run(&read(directory.path(), 10)).unwrap_err();
        assert!(error.ends_with("Is a directory (os error 21)"), "{error}");
        let empty = directory.path().join("empty");
        fs::write(&empty, "").unwrap();
        let error = run(&read(&empty, 10)).unwrap_err();
        assert!(error.ends_with("empty: it has no bytes"), "{error}");
        let error = run(&write(&empty, 10)).unwrap_err();
        assert!(error.contains("cannot write a file in"), "{error}");
        let bytes = std::ffi::OsString::from_vec(b"/no\xffname".to_vec());
        let error = run(&read(Path::new(&bytes), 10)).unwrap_err();
        assert!(error.contains("/no\u{fffd}name"), "{error}");
    }

    #[test]
    fn a_measurement_can_be_stopped() {
        let directory = directory();
        let stopped = AtomicBool::new(true);
        for task in [
            read(Path::new("/dev/zero"), 60_000),
            write(directory.path(), 60_000),
        ] {
            let error = measure_storage(&task, &stopped).unwrap_err();
            assert!(error.ends_with("the measurement was stopped"), "{error}");
        }
    }

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
