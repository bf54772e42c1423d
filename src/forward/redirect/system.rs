//! The system calls for which there is no safe function: all unsafe code of the redirection.
#![allow(unsafe_code)]

use std::{
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    io::Errno,
    ioctl::{Opcode, Setter, Updater, ioctl, opcode},
    process::{Pid, Resource, Signal, set_parent_process_death_signal, setrlimit},
};
use seccompiler::{BpfProgram, sock_filter};
use tokio::io::{Interest, unix::AsyncFd};

use super::filter::{Handover, SetupStep};
use crate::process::inherited_descriptor_limit;

const RECEIVE: Opcode = opcode::read_write::<libc::seccomp_notif>(MAGIC, 0);
const SEND: Opcode = opcode::read_write::<libc::seccomp_notif_resp>(MAGIC, 1);
const ID_VALID: Opcode = opcode::write::<u64>(MAGIC, 2);
/// `SECCOMP_IOC_MAGIC` in `linux/seccomp.h`.
const MAGIC: u8 = b'!';

/// Makes a command install the filter in its new process, and pass the listener through `handover`, before it becomes
/// the program. The process gets the limit of open files that this process was started with, and is killed when the
/// thread that has started it ends.
pub(super) fn install_before_exec(command: &mut Command, filter: BpfProgram, handover: Handover) {
    let limit = inherited_descriptor_limit();
    let hook = move || {
        if let Some(limit) = limit {
            // A program with another limit is better than none.
            let _ = setrlimit(Resource::Nofile, limit);
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let done = install(&filter).and_then(|listener| {
            let passed = handover.pass(&listener);
            passed.map_err(|errno| (SetupStep::Pass, errno))
        });
        done.map_err(|(step, errno)| {
            handover.fail(step, errno);
            io::Error::from(errno)
        })
    };
    // SAFETY: between fork and exec only async-signal-safe functions may be called. The hook makes system calls on
    // memory that exists already or is on the stack; it neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(hook);
    }
}

/// Sets `no_new_privs`, installs the filter in this thread, and returns the listener. Async-signal-safe.
fn install(filter: &[sock_filter]) -> Result<OwnedFd, (SetupStep, Errno)> {
    rustix::thread::set_no_new_privs(true).map_err(|errno| (SetupStep::NoNewPrivileges, errno))?;
    // Without `WAIT_KILLABLE_RECV`: a signal interrupts a call that waits for its answer, as it interrupts a
    // `connect()`.
    let installed = set_filter(filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    installed.map_err(|errno| (SetupStep::Filter, errno))
}

fn set_filter(filter: &[sock_filter], flags: libc::c_ulong) -> Result<OwnedFd, Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        // `seccompiler::sock_filter` and `libc::sock_filter` are the same C structure.
        filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: `program` names `len` instructions that live during the call, and the kernel only reads them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            ptr::from_ref(&program),
        )
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(last_errno)?;
    // SAFETY: the kernel has just made this descriptor for the caller, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Registers a descriptor with the runtime, to wait until it is ready.
/// Fails if this process may not watch more descriptors.
pub(super) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open as long as it lives and always has the same number, and the `AsyncFd` owns it.
    // The users of the `AsyncFd` never reach it mutably.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    Ok(registered?)
}

/// Returns true if the kernel has listeners for seccomp, and their messages have the sizes that this program knows.
/// Fails if the kernel has no such listeners, or if this process may not ask for them.
pub(super) fn knows_notifications() -> Result<bool, Errno> {
    let mut sizes = libc::seccomp_notif_sizes {
        seccomp_notif: 0,
        seccomp_notif_resp: 0,
        seccomp_data: 0,
    };
    // SAFETY: the kernel writes one `seccomp_notif_sizes`, into one that lives during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_NOTIF_SIZES,
            0,
            ptr::from_mut(&mut sizes),
        )
    };
    if result != 0 {
        return Err(last_errno());
    }
    Ok(
        usize::from(sizes.seccomp_notif) == size_of::<libc::seccomp_notif>()
            && usize::from(sizes.seccomp_notif_resp) == size_of::<libc::seccomp_notif_resp>(),
    )
}

/// Receives a notification. Blocks if none is pending.
/// Fails with `ENOENT` if the caller has ended or was interrupted since.
pub(super) fn receive(listener: BorrowedFd<'_>) -> Result<libc::seccomp_notif, Errno> {
    // The kernel accepts a structure of zeros only.
    let mut notification = libc::seccomp_notif {
        id: 0,
        pid: 0,
        flags: 0,
        data: libc::seccomp_data {
            nr: 0,
            arch: 0,
            instruction_pointer: 0,
            args: [0; 6],
        },
    };
    // SAFETY: the opcode is that of `SECCOMP_IOCTL_NOTIF_RECV`, for which the kernel writes one `seccomp_notif`. That
    // the kernel's structure is not larger has been checked by `knows_notifications`.
    unsafe {
        ioctl(
            listener,
            Updater::<RECEIVE, libc::seccomp_notif>::new(&mut notification),
        )?;
    }
    Ok(notification)
}

/// Sends the answer to a notification.
/// Fails with `ENOENT` if the caller has ended or was interrupted.
pub(super) fn send(
    listener: BorrowedFd<'_>,
    mut answer: libc::seccomp_notif_resp,
) -> Result<(), Errno> {
    // SAFETY: the opcode is that of `SECCOMP_IOCTL_NOTIF_SEND`, for which the kernel reads one `seccomp_notif_resp`,
    // which has the kernel's size (`knows_notifications`).
    unsafe {
        ioctl(
            listener,
            Updater::<SEND, libc::seccomp_notif_resp>::new(&mut answer),
        )
    }
}

/// Returns true if the caller still waits for the answer to the notification with this id.
pub(super) fn is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the opcode is that of `SECCOMP_IOCTL_NOTIF_ID_VALID`, for which the kernel reads one `u64`.
    unsafe { ioctl(listener, Setter::<ID_VALID, u64>::new(id)) }.is_ok()
}

/// Writes bytes to the memory of another process, where that process could write itself.
/// Fails if the memory cannot be written: the pointer is wrong, the thread has ended, or this process has no
/// permission.
pub(super) fn write_memory(thread: Pid, place: u64, bytes: &[u8]) -> Result<(), Errno> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: ptr::without_provenance_mut(usize::try_from(place).map_err(|_| Errno::FAULT)?),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel reads `bytes`, which live during the call, and writes to no memory of this process.
    let written = unsafe {
        libc::process_vm_writev(
            thread.as_raw_nonzero().get(),
            ptr::from_ref(&local),
            1,
            ptr::from_ref(&remote),
            1,
            0,
        )
    };
    match usize::try_from(written) {
        Err(_) => Err(last_errno()),
        Ok(written) if written < bytes.len() => Err(Errno::FAULT),
        Ok(_) => Ok(()),
    }
}

/// Switches off the option `TCP_FASTOPEN_CONNECT`, with which `connect()` does not connect before the first byte is
/// written. A failure is ignored: a kernel without the option has not deferred the connection.
pub(super) fn connect_at_once(socket: BorrowedFd<'_>) {
    let off: libc::c_int = 0;
    let length = libc::socklen_t::try_from(size_of_val(&off)).unwrap_or(0);
    // SAFETY: the kernel reads `length` bytes, which is the size of `off`, and keeps no pointer.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN_CONNECT,
            ptr::from_ref(&off).cast(),
            length,
        );
    }
}

/// Returns a flag that tells whether a terminal has sent the last signal with this number. A terminal sends its signals
/// to all programs of its foreground group.
pub(crate) fn sent_by_terminal(signal: libc::c_int) -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&flag);
    let action = move |info: &libc::siginfo_t| {
        // A process that sends a signal has another code.
        shared.store(info.si_code == libc::SI_KERNEL, Ordering::Relaxed);
    };
    // SAFETY: the action is async-signal-safe: it stores to an atomic, and neither allocates nor takes a lock.
    unsafe { signal_hook_registry::register_sigaction(signal, action)? };
    Ok(flag)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
