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

mod command;
mod entrance;
mod filter;
mod notification;
mod remote_socket;
mod supervisor;
mod system;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use rustix::{io::Errno, process::Pid};
use tokio::net::TcpStream;

pub(crate) use command::{RedirectedCommand, StartError};
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
    ///
    /// # Cancel safety
    ///
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
