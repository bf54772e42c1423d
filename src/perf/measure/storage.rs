//! What the source or the sink of a host can do alone: the bytes per second of a file or a disk.

mod reading;
mod writing;

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{
    perf::{
        facts::host_roots::{HostRoots, trimmed},
        messages::{BandwidthResult, NetworkCounters, StorageTask, TaskResult},
    },
    ssh::quote,
};

/// The size of one read or write. With large ones the system calls take a small part of the time.
const BUFFER_BYTES: usize = 1 << 20;

/// Measures a file or a directory of this host. Blocks the thread until the time of the task has passed, or `is_stopped` is
/// set. Bytes of a new file may take longer to reach the disk.
///
/// # Errors
///
/// One sentence for the user, which names the path.
pub(crate) fn measure_storage(
    task: &StorageTask,
    is_stopped: &AtomicBool,
) -> Result<TaskResult, String> {
    let amount = match task {
        StorageTask::Read { path, millis } => {
            let path = Path::new(OsStr::from_bytes(path));
            reading::measure(path, limit(*millis), is_stopped)
                .map_err(|error| sentence("read", path, &error))?
        }
        StorageTask::Write { path, millis } => {
            let path = Path::new(OsStr::from_bytes(path));
            writing::measure(path, limit(*millis), is_stopped)
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
        fs::write(&path, vec![7; 3_000_000]).unwrap();
        let result = run(&read(&path, 50)).unwrap();
        assert!(result.bytes_received > 3_000_000, "{result:?}");
        assert!(result.nanos >= 50_000_000);
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
}
