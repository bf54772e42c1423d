//! Starts a COMMAND whose TCP connections to certain addresses are redirected, without the COMMAND being told.
//!
//! A seccomp filter that COMMAND and all its children inherit makes the kernel report each `connect()` to this process
//! and suspend the caller. All other system calls run at their usual speed. For each report this process:
//!
//! 1. reads the address from the caller's memory. If the address is not covered by [`Destinations`], the kernel carries
//!    out the call as if there were no filter.
//! 2. takes the caller's socket with `pidfd_getfd`. It is the same open description, so all options and epoll
//!    registrations that the program has set stay in force.
//! 3. connects the socket to a *door*, a listener on the loopback interface that drops every packet. The kernel then
//!    keeps the socket connecting. A non-blocking `connect()` returns `EINPROGRESS` here.
//! 4. opens the connection at the far end. If that fails, the socket is disconnected: a caller that waits receives the
//!    errno, and a program with a non-blocking socket finds it as `SO_ERROR`, which the filter reports as well.
//! 5. connects a second socket, with the address of the door, to the socket of COMMAND, and gives it to
//!    [`Destinations::attach`]. Both sockets become one connection, and the program's socket becomes writable.
//! 6. lets the callers that wait return.
//!
//! ```text
//!  COMMAND ── connect(fd, 192.0.2.1:5432) ──► seccomp ──► Notifications ──► supervisor ── open ──► far end
//!     │                                                                        │
//!     └── the socket of fd ── connecting ──► door ◄── connects a duplicate ────┤
//!                 ▲                                                            │
//!                 └════════ loopback ════════ second socket ◄── Entrance ◄─────┘
//!                                                 └── attach ──► far end
//! ```
//!
//! # What a program can notice
//!
//! - A signal interrupts a `connect()` that waits, as it does without the filter; the connection is then made in the
//!   background. With a send timeout (`SO_SNDTIMEO`) the kernel without the filter does not repeat the call itself.
//! - A socket that was closed while it connected may still reach its target, where it is closed at once.
//! - Where a connection fails, `read()` and `write()` of a non-blocking socket return `ECONNRESET`, whatever the
//!   reason.
//! - `getpeername()` and `getsockname()` return loopback addresses. With IPv4, each host has a peer address of its own,
//!   which leads to that host on every port.
//! - `no_new_privs` is set, so set-user-ID programs and file capabilities have no effect in COMMAND.
//! - After the redirection has ended, every `connect()` of a process that still lives fails with `ENOSYS`.
//!
//! # What is not redirected
//!
//! - Connections that `io_uring` makes, which no seccomp filter sees.
//! - TCP fast open by `sendto(MSG_FASTOPEN)`. (The option `TCP_FASTOPEN_CONNECT` is covered: it is switched off.)
//! - Programs of another architecture than this program's, such as 32-bit programs. They run, and connect directly.
//! - Processes whose memory this process may not read: those that have made themselves undumpable; and, with the Yama
//!   setting `kernel.yama.ptrace_scope` = 1, daemons that are no longer descendants of this process.
//! - UDP, and everything else that is not a TCP socket.
//!
//! A process in another network namespace has another loopback interface, so its redirected connections are refused.
//!
//! The redirection is no security boundary: a program that changes the address in its memory during the call can
//! connect to any address that the kernel allows.
//!
//! # Requirements
//!
//! Linux 5.9 on `x86_64`, `aarch64` or `riscv64` with `CONFIG_SECCOMP_FILTER`, `/proc`, and a `ptrace_scope` of 0 or 1
//! (or the capability `CAP_SYS_PTRACE` with 2). A process can have one seccomp listener, so a redirected COMMAND cannot
//! start another redirection.

mod entrance;
mod filter;
mod notification;
mod remote_socket;
mod supervisor;
mod system;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsStr,
    io,
    net::SocketAddr,
    process::{Command, ExitStatus},
    sync::Arc,
};

use rustix::{io::Errno, process::Pid};
use tokio::{net::TcpStream, process::Child};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::AbortOnDropHandle,
};

use self::{
    filter::{Handed, connect_filter, handover},
    notification::Notifications,
    supervisor::{Entering, Supervisor},
};
use crate::{process, threads};

pub(crate) use system::sent_by_terminal;

/// The addresses whose connections are redirected, and the way that carries each connection.
pub(crate) trait Destinations: Clone + Send + Sync + 'static {
    /// A connection that the far end has opened and that has no local socket yet. Dropping it closes the connection.
    type Opened: Send + 'static;

    /// Returns true if a connection to this address is redirected. An IPv4 address that is mapped into IPv6 is given as
    /// IPv4. Must return fast: it delays every `connect()` of COMMAND.
    fn covers(&self, address: SocketAddr) -> bool;

    /// Opens a connection to an address that is covered. The program waits in `connect()` meanwhile, and receives the
    /// errno of a failure.
    /// The future is dropped when the calling thread has ended, or when the send timeout of its socket has elapsed.
    fn open(&self, address: SocketAddr)
    -> impl Future<Output = Result<Self::Opened, Errno>> + Send;

    /// Connects an opened connection with its local socket. Called before `connect()` returns in the program. Must not
    /// block.
    fn attach(&self, opened: Self::Opened, socket: TcpStream);

    /// Receives the thread of a process that forbids access to its memory, whose connections are therefore not
    /// redirected. Must return fast.
    fn bypassed(&self, thread: Pid);
}

/// A running program whose connections are redirected, as are those of its child processes. The redirection ends when
/// the value is dropped; the processes go on.
#[derive(Debug)]
pub(crate) struct RedirectedCommand {
    child: Child,
    entering: Entering,
    over: CancellationToken,
    _supervisor: AbortOnDropHandle<()>,
}

/// The reason why a program has not been started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The program does not exist: shells exit with 127.
    #[error("cannot find {program}: {error}")]
    NotFound {
        /// The program as the user typed it.
        program: String,
        /// What the kernel reports.
        error: io::Error,
    },
    /// The program exists and cannot be executed: shells exit with 126.
    #[error("cannot execute {program}: {error}")]
    CannotExecute {
        /// The program as the user typed it.
        program: String,
        /// What the kernel reports.
        error: io::Error,
    },
    /// The kernel, a container or a setting does not allow redirection. The text says which.
    #[error("cannot redirect connections on this host: {0}")]
    Unusable(String),
    /// This process has no descriptors or no memory left, or cannot bind the loopback address.
    #[error("cannot prepare the redirection of connections: {0}")]
    Prepare(#[source] io::Error),
}

impl RedirectedCommand {
    /// Starts a program. It inherits the standard streams, the working directory, the process group, and the limits
    /// that this process was started with. A name without a slash is looked up in `PATH`. Blocks until the program has
    /// been executed. Must be called within a tokio runtime. The program is killed when the calling thread ends.
    /// Fails if the program cannot be executed, or if connections cannot be redirected here. No process is left then.
    pub(crate) fn start<D: Destinations>(
        mut command: Command,
        destinations: D,
    ) -> Result<Self, StartError> {
        if let Some(reason) = filter::obstacle() {
            return Err(StartError::Unusable(reason));
        }
        let filter = connect_filter();
        let filter = filter.map_err(|error| StartError::Unusable(error.to_string()))?;
        let (handover, takeover) = handover().map_err(|errno| StartError::Prepare(errno.into()))?;

        let program = command.get_program().to_owned();
        system::install_before_exec(&mut command, filter, handover);
        let mut command = tokio::process::Command::from(command);
        let spawned = process::with_inherited_core_dumps(|| command.spawn());
        // Closes the new process's end of the socket pair here.
        drop(command);

        let handed = takeover.take();
        let child = match (spawned, &handed) {
            (Ok(child), _) => child,
            (Err(_), Ok(Handed::Failed(step, errno))) => {
                return Err(StartError::Unusable(filter::explain(*step, *errno)));
            }
            (Err(error), _) => return Err(not_executed(&program, error)),
        };
        let notifications = match handed {
            Ok(Handed::Listener(listener)) => Notifications::new(listener),
            Ok(Handed::Failed(_, errno)) | Err(errno) => Err(errno.into()),
            Ok(Handed::Nothing) => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let notifications = match notifications {
            Ok(notifications) => notifications,
            Err(error) => return Err(StartError::Prepare(killed(child, error))),
        };
        let entering = Arc::default();
        let supervisor = Supervisor::new(notifications, destinations, Arc::clone(&entering));
        let over = CancellationToken::new();
        let ended = over.clone();
        let supervisor = threads::spawn(async move {
            Arc::new(supervisor).run().await;
            ended.cancel();
        });
        Ok(Self {
            child,
            entering,
            over,
            _supervisor: AbortOnDropHandle::new(supervisor),
        })
    }

    /// The program's process. None after [`wait`](Self::wait) has returned the status, when the number may be used
    /// again.
    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()?).ok()?)
    }

    /// Waits for the end of the program. Every connection that its `connect()` has reported as made has been given to
    /// [`Destinations::attach`] by then. Child processes of the program that still live are redirected until this value
    /// is dropped.
    /// The future may be dropped and the function called again.
    /// Fails if the kernel has discarded the status, because SIGCHLD is ignored.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        supervisor::settle(&self.entering).await;
        status
    }

    /// Returns a future that completes when the program and all processes that it has started have ended.
    /// Cancel safe.
    pub(crate) fn ended(&self) -> WaitForCancellationFutureOwned {
        self.over.clone().cancelled_owned()
    }
}

/// Kills a program whose connections cannot be redirected, because this process has run out of descriptors. tokio
/// collects the status of a child that is dropped.
fn killed(mut child: Child, error: io::Error) -> io::Error {
    match child.start_kill() {
        Ok(()) => error,
        Err(kill) => io::Error::other(format!("{error}; the program still runs: {kill}")),
    }
}

fn not_executed(program: &OsStr, error: io::Error) -> StartError {
    let program = program.to_string_lossy().into_owned();
    match error.kind() {
        io::ErrorKind::NotFound => StartError::NotFound { program, error },
        _ => StartError::CannotExecute { program, error },
    }
}
