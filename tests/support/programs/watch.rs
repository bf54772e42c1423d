//! Facts about a running process, from `/proc`.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{fd::AsFd, io::ioctl_fionread, process::Signal};

use super::{Running, generous};
use crate::support::process::{field, status_kib};

/// Calls `probe` every millisecond until it returns a result: some facts of the kernel can only be polled. Fails after
/// [`generous`] with `what` in the message.
#[track_caller]
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let limit = generous();
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "waited {limit:?} for {what}, which did not happen"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the offset up to which the process has written a file below `directory`, with or without a name, or
/// `None` if it has no such file open.
pub fn write_position(process: &Running, directory: &Path) -> Option<u64> {
    let proc = format!("/proc/{}", process.id());
    let entries = fs::read_dir(format!("{proc}/fd")).ok()?;
    let mut positions = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_string_lossy().into_owned();
        let below = fs::read_link(entry.path()).ok()?.starts_with(directory);
        let info = fs::read_to_string(format!("{proc}/fdinfo/{number}"));
        let info = info.ok().filter(|_| below)?;
        let writes = field(&info, "flags:").is_some_and(|flags| !flags.ends_with('0'));
        field(&info, "pos:").filter(|_| writes)?.parse().ok()
    });
    positions.next()
}

/// Returns the number of unread bytes in a pipe.
pub fn held_bytes(pipe: impl AsFd) -> u64 {
    ioctl_fionread(pipe).expect("a pipe tells what is in it")
}

/// Returns true if this process, and so every program that it starts, ignores the signal, as after `&` of a shell
/// or `nohup`.
pub fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
    let mask = field(&status, "SigIgn:").expect("the kernel tells");
    let mask = u64::from_str_radix(mask, 16).expect("a number");
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// Returns the peak of the resident memory of the process, in KiB.
pub fn peak_kib(process: &Running) -> u64 {
    status_kib(&process.id().to_string(), "VmHWM:")
}

/// Returns the memory that the process has registered with devices, in KiB.
pub fn pinned_kib(process: &Running) -> u64 {
    status_kib(&process.id().to_string(), "VmPin:")
}

/// Returns the processor time that the process has used, in ticks of 10 ms.
pub fn cpu_ticks(process: &Running) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = |field: &str| field.parse::<u64>().expect("a number");
    // Fields 14 and 15 of proc_pid_stat(5); the first field after the name is field 3.
    fields
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .map(ticks)
        .sum()
}
