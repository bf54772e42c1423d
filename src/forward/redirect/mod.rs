//! Starts a COMMAND whose TCP connections to certain addresses are redirected, without the COMMAND being told.
//!
//! A seccomp filter that COMMAND and all its children inherit makes the kernel report each `connect()` to this process
//! and suspend the caller. All other system calls run at their usual speed. For each report this process:
//!
//! 1. reads the address from the caller's memory. If the address is not covered by [`Destinations`], the kernel carries
//!    out the call as if there were no filter.
//! 2. takes the caller's socket with `pidfd_getfd`. It is the same open description, so all options and epoll
//!    registrations that the program has set stay in force.
//! 3. opens the connection at the far end. If that fails, the caller receives its errno.
//! 4. connects the socket to a listener on the loopback interface, accepts the connection there, and gives the accepted
//!    socket to [`Destinations::attach`].
//! 5. answers the caller with what the kernel has returned for the socket: success, or `EINPROGRESS` for a non-blocking
//!    socket.
//!
//! ```text
//!  COMMAND ── connect(fd, 192.0.2.1:5432) ──► seccomp ──► Notifications ──► supervisor ── open ──► far end
//!     │                                                                        │
//!     └── the socket of fd ═══ loopback ═══ Entrance ◄── connects a duplicate ─┘
//!                                              └── attach ──► far end
//! ```
//!
//! | file | what it has |
//! |---|---|
//! | `command` | starts COMMAND with the filter, and waits for its end |
//! | `filter` | the seccomp filter: `connect()` is reported, and every other system call is allowed |
//! | `handover` | the socket pair through which the new process passes its listener to this process |
//! | `notification` | receives the calls of `connect()`, and sends the answers |
//! | `supervisor` | decides about each call, and carries out those that are redirected |
//! | `caller` | the thread that calls `connect()`: reads its memory and takes its sockets |
//! | `remote_socket` | a socket of COMMAND, which this process has duplicated |
//! | `entrance` | the local listeners at which redirected sockets arrive |
//! | `support` | finds out whether connections can be redirected on this host |
//! | `system` | the system calls for which there is no safe function |
//!
//! # What a program can notice
//!
//! - `connect()` returns only after the far end has answered, also on a non-blocking socket. The send timeout
//!   (`SO_SNDTIMEO`) of a blocking socket is respected.
//! - A signal that the program handles is delivered after `connect()` has returned. A signal that ends the program ends it
//!   at once. (Before Linux 5.19, a signal interrupts the call, and the program must call `connect()` again.)
//! - `getpeername()` and `getsockname()` return loopback addresses.
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
//! The redirection is no security boundary: a program that changes the address in its memory during the call can connect
//! to any address that the kernel allows.
//!
//! # Requirements
//!
//! Linux 5.9 on `x86_64`, `aarch64` or `riscv64` with `CONFIG_SECCOMP_FILTER`, `/proc`, and a `ptrace_scope` of 0 or 1 (or
//! the capability `CAP_SYS_PTRACE` with 2). A process can have one seccomp listener, so a redirected COMMAND cannot start
//! another redirection.

mod caller;
mod command;
mod entrance;
mod filter;
mod handover;
mod notification;
mod remote_socket;
mod supervisor;
mod support;
mod system;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use rustix::io::Errno;
use tokio::net::TcpStream;

pub(crate) use command::{RedirectedCommand, StartError};

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
}
