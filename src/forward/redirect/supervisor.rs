//! Decides about each call of `connect()`, and carries out those that are redirected.

use std::{future::pending, net::SocketAddr, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;
use tokio::{task::JoinSet, time::timeout};

use super::{
    Destinations,
    caller::{self, errno_of},
    entrance::Entrance,
    notification::{ConnectAnswer, ConnectCall, Notifications},
    remote_socket::{RemoteSocket, canonical},
    system,
};

/// What the calls of all processes with the filter have in common.
#[derive(Debug)]
pub(super) struct Supervisor<D> {
    pub(super) notifications: Notifications,
    pub(super) entrance: Entrance,
    pub(super) destinations: D,
}

/// A call that is redirected.
struct Redirected {
    call: ConnectCall,
    /// The calling thread.
    thread: OwnedFd,
    socket: RemoteSocket,
    destination: SocketAddr,
}

impl<D: Destinations> Supervisor<D> {
    /// Answers all calls, until the last process with the filter has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections that are being opened. From then on, every call fails with `ENOSYS`.
    pub(super) async fn run(self: Arc<Self>) {
        let mut connects = JoinSet::new();
        loop {
            let call = tokio::select! {
                call = self.notifications.next() => call,
                Some(_) = connects.join_next() => continue,
            };
            match call {
                Ok(Some(call)) => self.handle(call, &mut connects),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("connections are no longer redirected: {error}");
                    return;
                }
            }
        }
    }

    /// Answers a call, or starts a task that does.
    fn handle(self: &Arc<Self>, call: ConnectCall, connects: &mut JoinSet<()>) {
        match self.decide(call) {
            Ok(redirected) => {
                connects.spawn(Arc::clone(self).carry_out(redirected));
            }
            Err(answer) => self.notifications.answer(&call, answer),
        }
    }

    /// Returns the redirection of a call, or the answer to a call that is not redirected.
    fn decide(&self, call: ConnectCall) -> Result<Redirected, ConnectAnswer> {
        let address = match caller::address(&call) {
            Ok(address) => address.ok_or(ConnectAnswer::FromKernel)?,
            Err(error) => return Err(without_access(errno_of(&error))),
        };
        let destination = canonical(address);
        if !self.destinations.covers(destination) {
            return Err(ConnectAnswer::FromKernel);
        }
        let thread = caller::open_thread(call.thread).map_err(without_access)?;
        let fd = caller::duplicate(&thread, call.descriptor).map_err(without_access)?;
        // All that was read belongs to the caller if the caller still waits: its number has not been used again.
        if !self.notifications.is_valid(&call) {
            return Err(ConnectAnswer::FromKernel);
        }
        let socket = RemoteSocket::new(fd, address).ok_or(ConnectAnswer::FromKernel)?;
        Ok(Redirected {
            call,
            thread,
            socket,
            destination,
        })
    }

    /// Connects a socket to its destination and answers the caller. If the caller ends first, drops what has been opened.
    async fn carry_out(self: Arc<Self>, redirected: Redirected) {
        let Redirected {
            call,
            thread,
            socket,
            destination,
        } = redirected;
        let answer = tokio::select! {
            () = end_of(thread) => return,
            answer = self.connect(call, socket, destination) => answer,
        };
        let answer = answer.map_or_else(ConnectAnswer::Failed, |()| ConnectAnswer::Connected);
        self.notifications.answer(&call, answer);
    }

    /// Opens the far end of a connection, and connects the socket to it.
    async fn connect(
        &self,
        call: ConnectCall,
        socket: RemoteSocket,
        destination: SocketAddr,
    ) -> Result<(), Errno> {
        let open = self.destinations.open(destination);
        let opened = match socket.time_limit() {
            // As the kernel does, which then leaves the socket connecting.
            Some(limit) => timeout(limit, open)
                .await
                .map_err(|_| Errno::INPROGRESS)??,
            None => open.await?,
        };
        if !self.notifications.is_valid(&call) {
            return Err(Errno::INTR);
        }
        let (stream, connected) = self.entrance.enter(socket).await?;
        self.destinations.attach(opened, stream);
        connected
    }
}

/// The answer to a call whose caller cannot be examined. Without descriptors or memory the address is unknown, and
/// connecting directly could be wrong, so the call fails. All other reasons are the caller's: it has ended, its pointer
/// or its descriptor is wrong, or it does not allow access.
fn without_access(errno: Errno) -> ConnectAnswer {
    match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => ConnectAnswer::Failed(errno),
        Errno::ACCESS | Errno::PERM => {
            tracing::warn!("a process forbids access to its memory and connects directly: {errno}");
            ConnectAnswer::FromKernel
        }
        _ => ConnectAnswer::FromKernel,
    }
}

/// Completes when a thread has ended, or never if the runtime cannot watch it.
async fn end_of(thread: OwnedFd) {
    let ended = match system::watch(thread) {
        Ok(thread) => thread.readable().await.is_ok(),
        Err(_) => false,
    };
    if !ended {
        pending::<()>().await;
    }
}
