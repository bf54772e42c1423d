//! Decides about each call that the filter reports, and carries out the calls of `connect()` that are redirected.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{io::Errno, net::sockopt::socket_cookie};
use tokio::{io::Interest, sync::RwLock, task::JoinSet, time::sleep};

use super::{
    Destinations,
    entrance::Entrance,
    notification::{self, Answer, Notifications, Request, SuspendedCall, errno_of},
    remote_socket::{ConnectingSocket, RemoteSocket, canonical},
    system,
};

/// What the calls of all processes with the filter have in common.
#[derive(Debug)]
pub(super) struct Supervisor<D> {
    notifications: Notifications,
    destinations: D,
    entrance: Entrance,
    connects: Mutex<Connects>,
    entering: Entering,
}

/// A lock that is held for reading from the moment in which a program may see its socket connected, until the tunnel
/// has the socket.
pub(super) type Entering = Arc<RwLock<()>>;

/// Waits until every connection that a program has seen as made has been given to [`Destinations::attach`].
pub(super) async fn settle(entering: &Entering) {
    drop(entering.write().await);
}

/// The sockets that are not connected yet, and those that have failed, by their [cookies](RemoteSocket::cookie).
#[derive(Debug, Default)]
struct Connects {
    /// The sockets that connect, and the calls that wait for them. A socket has no such call if it is non-blocking, or
    /// if a signal has interrupted the call.
    connecting: HashMap<u64, Vec<SuspendedCall>>,
    /// The sockets that have failed, and the errors that their programs have not read, the oldest first.
    failed: VecDeque<(u64, Errno)>,
}

/// A call of `connect()` that is redirected.
struct Redirected {
    call: SuspendedCall,
    process: OwnedFd,
    socket: RemoteSocket,
    destination: SocketAddr,
}

/// The most errors that wait to be read. A program that has not read the error of a connection while so many others
/// failed reads the error of the kernel, which is a reset.
const MOST_FAILED: usize = 1024;

impl<D: Destinations> Supervisor<D> {
    pub(super) fn new(notifications: Notifications, destinations: D, entering: Entering) -> Self {
        Self {
            notifications,
            destinations,
            entrance: Entrance::default(),
            connects: Mutex::default(),
            entering,
        }
    }

    /// Answers all calls, until the last process with the filter has ended.
    /// Dropping the future drops the connections that are being opened. From then on, every call fails with `ENOSYS`.
    pub(super) async fn run(self: Arc<Self>) {
        let mut tasks = JoinSet::new();
        loop {
            let call = tokio::select! {
                call = self.notifications.next() => call,
                Some(_) = tasks.join_next() => continue,
            };
            match call {
                Ok(Some(call)) => {
                    if let Some(answer) = self.handle(call, &mut tasks) {
                        self.notifications.answer(&call, answer);
                    }
                }
                Ok(None) => return settle(&self.entering).await,
                Err(error) => {
                    tracing::error!("connections are no longer redirected: {error}");
                    return;
                }
            }
        }
    }

    /// Returns the answer to a call, or none if a task will give it.
    fn handle(self: &Arc<Self>, call: SuspendedCall, tasks: &mut JoinSet<()>) -> Option<Answer> {
        match call.request {
            Request::SocketError { value, length } => Some(
                self.socket_error(&call, value, length)
                    .unwrap_or_else(|errno| self.without_access(&call, errno)),
            ),
            Request::Connect { address, length } => match self.decide(call, address, length) {
                Ok(redirected) => self.begin(redirected, tasks),
                Err(answer) => Some(answer),
            },
        }
    }

    /// Returns the redirection of a `connect()`, or the answer to one that is not redirected.
    fn decide(
        &self,
        call: SuspendedCall,
        address: u64,
        length: usize,
    ) -> Result<Redirected, Answer> {
        let address = match notification::address(call.thread, address, length) {
            Ok(address) => address.ok_or(Answer::FromKernel)?,
            Err(error) => return Err(self.without_access(&call, errno_of(&error))),
        };
        let mut destination = canonical(address);
        if let Some(host) = self.entrance.host_at(destination.ip()) {
            destination.set_ip(host);
        }
        if !self.destinations.covers(destination) {
            return Err(Answer::FromKernel);
        }
        let refuse = |errno| self.without_access(&call, errno);
        let fd = duplicate(&call).map_err(refuse)?;
        let process = notification::open_process(call.thread).map_err(refuse)?;
        // All that was read belongs to the caller if the caller still waits: its number has not been used again.
        if !self.notifications.is_valid(&call) {
            return Err(Answer::FromKernel);
        }
        let socket = RemoteSocket::new(fd, address).ok_or(Answer::FromKernel)?;
        Ok(Redirected {
            call,
            process,
            socket,
            destination,
        })
    }

    /// Begins to connect a socket, or makes a call wait for a socket that connects already. Returns the answer to the
    /// call, or none if it waits.
    fn begin(self: &Arc<Self>, redirected: Redirected, tasks: &mut JoinSet<()>) -> Option<Answer> {
        let Redirected {
            call,
            process,
            socket,
            destination,
        } = redirected;
        let cookie = match socket.cookie() {
            Ok(cookie) => cookie,
            Err(errno) => return Some(Answer::Failed(errno)),
        };
        let waits = socket.is_blocking();
        let limit = socket.time_limit().filter(|_| waits);
        let waiting = waits.then_some(call);
        let mut connects = self.connects();
        if let Some(errno) = connects.take_failed(cookie) {
            socket.clear_error();
            return Some(Answer::Failed(errno));
        }
        let answer = match connects.connecting.get_mut(&cookie) {
            Some(calls) => {
                calls.extend(waiting);
                Errno::ALREADY
            }
            None => match socket.begin(&self.entrance, destination.ip()) {
                Ok(socket) => {
                    connects
                        .connecting
                        .insert(cookie, waiting.into_iter().collect());
                    tasks.spawn(Arc::clone(self).carry_out(socket, cookie, process, destination));
                    Errno::INPROGRESS
                }
                Err(errno) => return Some(Answer::Failed(errno)),
            },
        };
        drop(connects);
        if let Some(limit) = limit {
            let supervisor = Arc::clone(self);
            tasks.spawn(async move {
                sleep(limit).await;
                supervisor.expire(cookie, &call);
            });
        }
        (!waits).then_some(Answer::Failed(answer))
    }

    /// Ends the waiting of a call whose time has passed. As with the kernel, the socket goes on to connect.
    fn expire(&self, cookie: u64, call: &SuspendedCall) {
        let mut connects = self.connects();
        let Some(calls) = connects.connecting.get_mut(&cookie) else {
            return;
        };
        if let Some(index) = calls.iter().position(|waiting| waiting.id == call.id) {
            calls.swap_remove(index);
            self.notifications
                .answer(call, Answer::Failed(Errno::INPROGRESS));
        }
    }

    /// Opens the far end of a socket that connects, and connects both.
    async fn carry_out(
        self: Arc<Self>,
        socket: ConnectingSocket,
        cookie: u64,
        process: OwnedFd,
        destination: SocketAddr,
    ) {
        let opened = tokio::select! {
            // A child may have inherited the socket.
            () = end_of(process) => Err(Some(Errno::CONNRESET)),
            () = socket.settled() => Err(None),
            opened = self.destinations.open(destination) => opened.map_err(Some),
        };
        let joined = match opened {
            Ok(opened) => self.join(&socket, opened).await.map_err(Some),
            Err(errno) => Err(errno),
        };
        match joined {
            Ok(()) => self.finish(socket, cookie),
            Err(errno) => self.fail(socket, cookie, errno),
        }
    }

    /// Connects a socket, and gives the other end of the connection to the tunnel.
    async fn join(&self, socket: &ConnectingSocket, opened: D::Opened) -> Result<(), Errno> {
        let _entering = self.entering.read().await;
        let stream = self.entrance.enter(socket).await?;
        self.destinations.attach(opened, stream);
        Ok(())
    }

    /// Answers the calls that wait for a socket that is connected.
    fn finish(&self, socket: ConnectingSocket, cookie: u64) {
        let calls = self.connects().take_calls(cookie);
        drop(socket);
        for call in calls {
            // The kernel finds the socket connecting, so it does not look at the address. It returns success, and so
            // does the call that a signal makes the program repeat.
            self.notifications.answer(&call, Answer::FromKernel);
        }
    }

    /// Answers the calls that wait for a socket that has failed: with this error, or with that of the kernel. If no
    /// call waits, the program finds the error as `SO_ERROR`.
    fn fail(&self, socket: ConnectingSocket, cookie: u64, errno: Option<Errno>) {
        let mut connects = self.connects();
        let calls = connects.take_calls(cookie);
        if calls.is_empty() {
            if let Some(errno) = errno {
                connects.add_failed(cookie, errno);
                socket.give_up();
            }
            return;
        }
        let errno = errno.or(socket.take_error()).unwrap_or(Errno::CONNABORTED);
        connects.add_failed(cookie, errno);
        socket.give_up();
        socket.take_error();
        drop(socket);
        for call in calls {
            if self.notifications.answer(&call, Answer::Failed(errno)) {
                connects.take_failed(cookie);
            }
        }
    }

    /// Answers a program that reads `SO_ERROR`: with the error of a connection that has failed, if the socket has one.
    fn socket_error(&self, call: &SuspendedCall, value: u64, length: u64) -> Result<Answer, Errno> {
        if self.connects().failed.is_empty() {
            return Ok(Answer::FromKernel);
        }
        let socket = duplicate(call)?;
        let Ok(cookie) = socket_cookie(&socket) else {
            return Ok(Answer::FromKernel);
        };
        if !self.notifications.is_valid(call) {
            return Ok(Answer::FromKernel);
        }
        let Some(errno) = self.connects().take_failed(cookie) else {
            return Ok(Answer::FromKernel);
        };
        let _ = rustix::net::sockopt::socket_error(&socket);
        let written = notification::write_option(call, value, length, errno.raw_os_error());
        Ok(written.map_or_else(Answer::Failed, |()| Answer::Done))
    }

    /// The answer to a call whose caller cannot be examined. Without descriptors or memory the address is unknown, and
    /// connecting directly could be wrong, so the call fails. All other reasons are the caller's: it has ended, its
    /// pointer or its descriptor is wrong, or it does not allow access.
    fn without_access(&self, call: &SuspendedCall, errno: Errno) -> Answer {
        match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Answer::Failed(errno),
            Errno::ACCESS | Errno::PERM => {
                self.destinations.bypassed(call.thread);
                Answer::FromKernel
            }
            _ => Answer::FromKernel,
        }
    }

    fn connects(&self) -> MutexGuard<'_, Connects> {
        self.connects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connects {
    /// Removes a socket from those that connect, and returns the calls that wait for it.
    fn take_calls(&mut self, cookie: u64) -> Vec<SuspendedCall> {
        self.connecting.remove(&cookie).unwrap_or_default()
    }

    fn add_failed(&mut self, cookie: u64, errno: Errno) {
        if self.failed.len() == MOST_FAILED {
            self.failed.pop_front();
        }
        self.failed.push_back((cookie, errno));
    }

    fn take_failed(&mut self, cookie: u64) -> Option<Errno> {
        let index = self
            .failed
            .iter()
            .position(|(failed, _)| *failed == cookie)?;
        self.failed.remove(index).map(|(_, errno)| errno)
    }
}

/// Returns a duplicate of the caller's descriptor.
fn duplicate(call: &SuspendedCall) -> Result<OwnedFd, Errno> {
    let thread = notification::open_thread(call.thread)?;
    notification::duplicate(thread, call.descriptor)
}

/// Completes when a process has ended, or never if the runtime cannot watch it.
async fn end_of(process: OwnedFd) {
    let ended = match system::watch(process, Interest::READABLE) {
        Ok(process) => process.readable().await.is_ok(),
        Err(_) => false,
    };
    if !ended {
        pending::<()>().await;
    }
}
