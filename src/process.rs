//! What a process inherits from its parent and passes on: ignored signals, closed standard streams, limits, core dumps.
//!
//! Core dumps are prevented by a limit of their size and by the dump filter. `PR_SET_DUMPABLE` would have the same
//! effect, but it also takes the process's files in `/proc` away from a user who is not root, and the guard and the
//! worker of an agent open pipes of each other there. `MADV_DONTDUMP` leaves pages out of a dump and needs `unsafe`;
//! the dump filter of the process leaves out all of them.
//!
//! The runtime of Rust opens `/dev/null` in place of a closed standard stream before `main`. Output to that file is
//! lost, and input from it is empty, both without an error. So [`LOOK`] records earlier which streams are closed, and
//! [`keep_closed_streams_unusable`] makes every use of these streams fail, as the use of a closed descriptor does.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::BorrowedFd,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, fcntl_getfd, retry_on_intr},
    process::{Resource, Rlimit, Signal, getrlimit, setrlimit},
    stdio::{dup2_stdin, dup2_stdout, stdin, stdout},
};
use tokio::signal::unix::{SignalKind, signal};

use crate::threads;

/// Prepares the process of a program. Call this function first in `main`, before a key is read and before other threads
/// start.
pub(crate) fn prepare() {
    forbid_core_dumps();
    // An error means that there is no `/dev/null`. The runtime of Rust then ends a process with a closed stream.
    let _ = keep_closed_streams_unusable();
    // An error means that no runtime can be made. The program then fails for that reason, with a message.
    let _ = keep_child_statuses();
    let _ = survive_file_limit();
}

/// The settings of core dumps that the process inherited, for the programs that it starts.
struct InheritedDumps {
    limit: Rlimit,
    filter: String,
}

/// What the process inherited, since [`forbid_core_dumps`] was called.
static INHERITED_DUMPS: OnceLock<InheritedDumps> = OnceLock::new();

/// Held while a program is started, so that two threads do not undo each other's settings.
static STARTING: Mutex<()> = Mutex::new(());

const DUMP_FILTER: &str = "/proc/self/coredump_filter";

/// Forbids core dumps of this process.
pub(crate) fn forbid_core_dumps() {
    let filter = fs::read_to_string(DUMP_FILTER).unwrap_or_default();
    let limit = getrlimit(Resource::Core);
    INHERITED_DUMPS.get_or_init(|| InheritedDumps {
        limit,
        // The kernel shows the filter as a hexadecimal number, and reads one without a prefix as another base.
        filter: format!("0x{}", filter.trim()),
    });
    set_no_dumps();
}

/// Runs `start`, which starts a program, with the core dumps that this process inherited: a user who wants a dump of a
/// command gets it. Until [`forbid_core_dumps`] is called there is nothing to restore.
pub(crate) fn with_inherited_core_dumps<T>(start: impl FnOnce() -> T) -> T {
    let Some(inherited) = INHERITED_DUMPS.get() else {
        return start();
    };
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = setrlimit(Resource::Core, inherited.limit);
    set_dump_filter(&inherited.filter);
    let started = start();
    set_no_dumps();
    started
}

fn set_no_dumps() {
    let hard = getrlimit(Resource::Core).maximum;
    // With a limit of 0, a kernel that passes dumps to a program such as systemd-coredump makes them all the same. With
    // a limit of 1 it makes none, and a dump into a file needs more than one byte as well.
    let limit = Rlimit {
        current: Some(hard.unwrap_or(1).min(1)),
        maximum: hard,
    };
    // Neither call fails for a process that lowers its own limit. If one did, the other would still work.
    let _ = setrlimit(Resource::Core, limit);
    set_dump_filter("0");
}

/// Sets which kinds of memory a dump contains: none with "0".
fn set_dump_filter(filter: &str) {
    // A kernel without core dumps has no filter either.
    let _ = fs::write(DUMP_FILTER, filter);
}

/// What the process inherited, since [`raise_descriptor_limit`] was called.
static INHERITED_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit of open files to the hard one, and returns the limit; none is no limit.
pub(crate) fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    INHERITED_LIMIT.get_or_init(|| limit);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // With the old limit the program serves fewer connections at a time: one that finds no descriptor is told.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current
}

/// Returns the limit that this process inherited, for the programs that it starts: a program that uses `select()` must
/// not get descriptors beyond 1023. Returns none if the limit has not been raised.
pub(crate) fn inherited_descriptor_limit() -> Option<Rlimit> {
    INHERITED_LIMIT.get().copied()
}

/// Returns true if this process ignores the signal with this number: `nohup` ignores SIGHUP, and a shell without job
/// control ignores SIGINT in a command with `&`. Returns false if `/proc` does not tell.
pub(crate) fn is_signal_ignored(number: u8) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::from(number).checked_sub(1);
    let bit = bit.and_then(|bit| 1_u64.checked_shl(bit)).unwrap_or(0);
    mask.unwrap_or(0) & bit != 0
}

/// Makes the kernel keep the exit statuses of child processes: it discards them while SIGCHLD is ignored. A program
/// that this process starts gets the default for SIGCHLD.
/// Fails if SIGCHLD is ignored and no runtime can be made.
pub(crate) fn keep_child_statuses() -> io::Result<()> {
    let child = Signal::CHILD.as_raw();
    if !u8::try_from(child).is_ok_and(is_signal_ignored) {
        return Ok(());
    }
    handle_without_effect(Signal::CHILD)
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) fail with EFBIG, which concerns one file. Without a
/// handler, SIGXFSZ kills the process. A program that this process starts gets the default for SIGXFSZ.
/// Fails if there is a limit and no runtime can be made.
pub(crate) fn survive_file_limit() -> io::Result<()> {
    let is_signal_ignored = u8::try_from(Signal::XFSZ.as_raw()).is_ok_and(is_signal_ignored);
    if getrlimit(Resource::Fsize).current.is_none() || is_signal_ignored {
        return Ok(());
    }
    handle_without_effect(Signal::XFSZ)
}

/// Handles a signal by doing nothing, to the end of the process. Programs that it starts get the default.
fn handle_without_effect(handled: Signal) -> io::Result<()> {
    let runtime = threads::runtime()?;
    let _context = runtime.enter();
    // The handler stays when the runtime is dropped.
    signal(SignalKind::from_raw(handled.as_raw())).map(drop)
}

/// Makes every block of 128 KiB or more a mapping of its own, which goes back to the system when it is freed.
///
/// glibc begins so, but raises the threshold to the size of such a block when one is freed: from then on the slots of
/// streams stay in the arenas of its threads. After 20,000 copies, at most 64 at a time, 400 MB stayed behind in a
/// server, and 40 MB with a fixed threshold. Other C libraries have no such threshold.
pub(crate) fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: mallopt(3) takes no pointer, and may be called at any time by any thread: under the lock of the arena it
    // sets a number that later calls of malloc read.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

static IS_STDIN_CLOSED: AtomicBool = AtomicBool::new(false);
static IS_STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Calls [`look`] before the runtime of Rust starts.
// SAFETY: the loader calls every entry of this section once, with at most three arguments that a function of the C
// calling convention may ignore. `look` needs nothing of the runtime: it makes two system calls that change nothing,
// and stores two flags.
#[allow(unsafe_code)]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Records which standard streams are closed.
extern "C" fn look() {
    IS_STDIN_CLOSED.store(is_closed(stdin()), Ordering::Relaxed);
    IS_STDOUT_CLOSED.store(is_closed(stdout()), Ordering::Relaxed);
}

fn is_closed(stream: BorrowedFd<'_>) -> bool {
    fcntl_getfd(stream) == Err(Errno::BADF)
}

/// Returns true if stdin was closed when this process started.
pub(crate) fn is_stdin_closed() -> bool {
    IS_STDIN_CLOSED.load(Ordering::Relaxed)
}

/// Returns true if stdout was closed when this process started.
pub(crate) fn is_stdout_closed() -> bool {
    IS_STDOUT_CLOSED.load(Ordering::Relaxed)
}

/// Makes a read of a stdin that was closed fail, and a write to a stdout that was closed: each becomes `/dev/null`,
/// open in the wrong direction. The programs that this process starts inherit them so.
/// Fails if there is no `/dev/null`.
pub(crate) fn keep_closed_streams_unusable() -> io::Result<()> {
    // The reference makes the linker keep the entry: nothing else names it.
    std::hint::black_box(&LOOK);
    if is_stdin_closed() {
        dup2_stdin(unreadable_stdin()?)?;
    }
    if is_stdout_closed() {
        dup2_stdout(File::open("/dev/null")?)?;
    }
    Ok(())
}

/// Returns a file that cannot be read, for the stdin of a command in place of a closed one.
/// Fails if there is no `/dev/null`.
pub(crate) fn unreadable_stdin() -> io::Result<File> {
    File::options().write(true).open("/dev/null")
}

/// The stdout of this process. In contrast to [`io::stdout`], a write to a stdout that is closed or not open for
/// writing is an error, and nothing is buffered.
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match retry_on_intr(|| rustix::io::write(stdout(), bytes)) {
                // Another process that has it open has made its writes non-blocking.
                Err(Errno::AGAIN) => {
                    let stdout = stdout();
                    let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
                    retry_on_intr(|| poll(&mut ready, None))?;
                }
                Err(Errno::BADF) => {
                    return Err(io::Error::other("it is closed, or not open for writing"));
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Closes stdout: a program behind a pipe gets its end of file now, and not when this program exits.
/// Fails if the rest of the output cannot be written, or if there is no `/dev/null` to take its place.
pub(crate) fn close_stdout() -> io::Result<()> {
    io::stdout().flush()?;
    let null = File::options().write(true).open("/dev/null")?;
    Ok(dup2_stdout(null)?)
}
