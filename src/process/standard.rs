//! Standard streams that were closed when this process started.
//!
//! The runtime of Rust opens `/dev/null` in place of a closed standard stream before `main`. Output to that file is
//! lost, and input from it is empty, both without an error. So [`LOOK`] records earlier which streams are closed, and
//! [`keep_unusable`] makes every use of these streams fail, as the use of a closed descriptor does.

use std::{
    fs::File,
    io,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    io::{Errno, fcntl_getfd},
    stdio::{dup2_stdin, dup2_stdout, stdin, stdout},
};

static IS_STDIN_CLOSED: AtomicBool = AtomicBool::new(false);
static IS_STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Calls [`look`] before the runtime of Rust starts.
// SAFETY: the loader calls every entry of this section once, with at most three arguments that a function of the C
// calling convention may ignore. `look` needs nothing of the runtime: it makes two system calls that change nothing, and
// stores two flags.
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

/// Makes a read of a stdin that was closed fail, and a write to a stdout that was closed: each becomes `/dev/null`, open
/// in the wrong direction. The programs that this process starts inherit them so.
///
/// # Errors
///
/// Fails if there is no `/dev/null`.
pub(crate) fn keep_unusable() -> io::Result<()> {
    // The reference makes the linker keep the entry: nothing else names it.
    std::hint::black_box(&LOOK);
    if is_stdin_closed() {
        dup2_stdin(unreadable()?)?;
    }
    if is_stdout_closed() {
        dup2_stdout(File::open("/dev/null")?)?;
    }
    Ok(())
}

/// Returns a file that cannot be read, for the stdin of a command in place of a closed one.
///
/// # Errors
///
/// Fails if there is no `/dev/null`.
pub(crate) fn unreadable() -> io::Result<File> {
    File::options().write(true).open("/dev/null")
}
