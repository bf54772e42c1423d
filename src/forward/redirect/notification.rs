//! The listener of the filter: receives the calls that the filter reports, and sends the answers.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::Pid,
};
use tokio::io::{Interest, unix::AsyncFd};

use super::system;

/// The listener of the filter. Only one task may receive from it.
#[derive(Debug)]
pub(super) struct Notifications(AsyncFd<OwnedFd>);

/// A system call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendedCall {
    /// The kernel's name of the call.
    pub(super) id: u64,
    /// The thread that has called.
    pub(super) thread: Pid,
    /// The descriptor of the socket in the calling process.
    pub(super) descriptor: i32,
    /// What the call is to do.
    pub(super) request: Request,
}

/// What a system call is to do. Pointers are those of the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// `connect()`.
    Connect {
        /// The place of the address.
        address: u64,
        /// The length of the address in bytes.
        length: usize,
    },
    /// `getsockopt()` of the option `SO_ERROR`.
    SocketError {
        /// The place of the value.
        value: u64,
        /// The place of the length of the value.
        length: u64,
    },
}

/// What the caller's system call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// What the kernel returns without the filter.
    FromKernel,
    /// Success.
    Done,
    /// An error.
    Failed(Errno),
}

impl Notifications {
    /// # Errors
    ///
    /// Fails if the runtime cannot watch the listener.
    pub(super) fn new(listener: OwnedFd) -> io::Result<Self> {
        system::watch(listener, Interest::READABLE).map(Self)
    }

    /// Receives the next call. Returns none after the last process with the filter has ended.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped has received no call.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses to deliver calls, which it does in no state that is known.
    pub(super) async fn next(&self) -> io::Result<Option<SuspendedCall>> {
        loop {
            let mut ready = self.0.readable().await?;
            match self.pending()? {
                Pending::Call => {
                    if let Some(call) = self.receive()? {
                        return Ok(Some(call));
                    }
                }
                Pending::Nothing => ready.clear_ready(),
                Pending::End => return Ok(None),
            }
        }
    }

    /// Returns true if the caller still waits for an answer.
    pub(super) fn is_valid(&self, call: &SuspendedCall) -> bool {
        system::is_valid(self.0.as_fd(), call.id)
    }

    /// Makes the caller's system call return. Returns false if the caller does not wait any more: it has ended, or a signal
    /// has interrupted the call.
    pub(super) fn answer(&self, call: &SuspendedCall, answer: Answer) -> bool {
        let (error, flags) = match answer {
            Answer::FromKernel => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE),
            Answer::Done => (0, 0),
            Answer::Failed(errno) => (-errno.raw_os_error(), 0),
        };
        let response = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error,
            flags: u32::try_from(flags).expect("the flag is 1"),
        };
        match system::send(self.0.as_fd(), response) {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => {
                tracing::warn!("cannot answer a connect(): {errno}");
                false
            }
        }
    }

    /// Receiving blocks while no call is pending, so this function asks the kernel first. A call that is withdrawn after
    /// the question does not make receiving block: it fails with `ENOENT`.
    fn pending(&self) -> Result<Pending, Errno> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Pending::Nothing),
            Err(errno) => return Err(errno),
        }
        let events = fds[0].revents();
        if events.contains(PollFlags::IN) {
            Ok(Pending::Call)
        } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            Ok(Pending::End)
        } else {
            Ok(Pending::Nothing)
        }
    }

    /// Receives the call that is pending. Returns none if it has been withdrawn.
    fn receive(&self) -> Result<Option<SuspendedCall>, Errno> {
        let received = match system::receive(self.0.as_fd()) {
            Err(Errno::NOENT | Errno::INTR) => return Ok(None),
            other => other?,
        };
        Ok(Some(SuspendedCall::from(&received)))
    }
}

impl From<&libc::seccomp_notif> for SuspendedCall {
    fn from(received: &libc::seccomp_notif) -> Self {
        let [descriptor, second, third, fourth, fifth, _] = received.data.args;
        let thread = i32::try_from(received.pid).ok().and_then(Pid::from_raw);
        let request = if libc::c_long::from(received.data.nr) == libc::SYS_getsockopt {
            Request::SocketError {
                value: fourth,
                length: fifth,
            }
        } else {
            Request::Connect {
                address: second,
                // A C `int`: the kernel ignores the upper half of the register.
                length: usize::try_from(lower_half(third)).unwrap_or(0),
            }
        };
        Self {
            id: received.id,
            // A thread that this process cannot see has the number 0. Looking for the largest number finds no thread.
            thread: thread.unwrap_or(Pid::from_raw(i32::MAX).expect("it is not 0")),
            descriptor: lower_half(descriptor),
            request,
        }
    }
}

/// What is pending at the listener.
enum Pending {
    Call,
    Nothing,
    End,
}

fn lower_half(register: u64) -> i32 {
    let [a, b, c, d, ..] = register.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}
