//! The local listeners at which redirected sockets arrive, and the pairing of both ends of each connection.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::io::Errno;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::remote_socket::{EntranceAddresses, RemoteSocket, canonical};

/// The most connections that wait to be accepted. The kernel lowers it to `net.core.somaxconn`, which is 4096 by default.
/// A full queue delays a connection by a second, until TCP tries again.
const BACKLOG: u32 = 4096;

/// The time within which a connection over the loopback interface arrives. It takes microseconds; only a packet filter
/// on the loopback interface can keep a connection from arriving.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);

/// The pause after an accept that has failed because this process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The local listeners. A connection whose other end is not a redirected socket is closed at once.
#[derive(Debug)]
pub(super) struct Entrance {
    addresses: EntranceAddresses,
    expected: Arc<Mutex<Vec<Expected>>>,
    _accepting: Vec<AbortOnDropHandle<()>>,
}

/// A socket that is being connected to a listener.
#[derive(Debug)]
struct Expected {
    socket: Arc<RemoteSocket>,
    arrived: oneshot::Sender<TcpStream>,
}

impl Entrance {
    /// Binds the listeners: 127.0.0.1, and `::1` if that address exists. The kernel chooses the ports.
    ///
    /// # Errors
    ///
    /// Fails if 127.0.0.1 cannot be bound.
    pub(super) fn bind() -> io::Result<Self> {
        let v4 = listen(TcpSocket::new_v4()?, Ipv4Addr::LOCALHOST.into())?;
        let v6 = TcpSocket::new_v6().and_then(|socket| listen(socket, Ipv6Addr::LOCALHOST.into()));
        Self::new(v4, v6.ok())
    }

    /// Accepts connections from both listeners.
    pub(super) fn new(v4: TcpListener, v6: Option<TcpListener>) -> io::Result<Self> {
        let addresses = EntranceAddresses {
            v4: v4.local_addr()?,
            v6: v6.as_ref().map(TcpListener::local_addr).transpose()?,
        };
        let expected = Arc::default();
        let accepting = [Some(v4), v6].into_iter().flatten();
        let accepting = accepting.map(|listener| {
            let task = tokio::spawn(accept(listener, Arc::clone(&expected)));
            AbortOnDropHandle::new(task)
        });
        Ok(Self {
            addresses,
            _accepting: accepting.collect(),
            expected,
        })
    }

    /// The addresses of the listeners.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> EntranceAddresses {
        self.addresses
    }

    /// Connects a socket to the listener. Returns the other end of the connection, and what the kernel has returned for
    /// the socket: nothing, or `EINPROGRESS`. The duplicate of the socket is closed.
    ///
    /// # Cancel safety
    ///
    /// The socket may become connected although the future is dropped. It is then reset.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be connected to the listener, for example because it is bound to another interface.
    pub(super) async fn enter(
        &self,
        socket: RemoteSocket,
    ) -> Result<(TcpStream, Result<(), Errno>), Errno> {
        let socket = Arc::new(socket);
        let mut expectation = self.expect(Arc::clone(&socket));
        let addresses = self.addresses;
        let connected = spawn_blocking(move || socket.connect(addresses)).await;
        let connected = match connected.unwrap_or(Err(Errno::IO)) {
            Err(errno) if errno != Errno::INPROGRESS => return Err(errno),
            other => other,
        };
        match timeout(ARRIVAL_LIMIT, &mut expectation.arrival).await {
            Ok(Ok(stream)) => Ok((stream, connected)),
            Ok(Err(_)) | Err(_) => Err(Errno::TIMEDOUT),
        }
    }

    /// Adds a socket to those that are expected, until the value that is returned is dropped.
    fn expect(&self, socket: Arc<RemoteSocket>) -> ExpectedArrival<'_> {
        let (arrived, arrival) = oneshot::channel();
        lock(&self.expected).push(Expected { socket, arrived });
        ExpectedArrival {
            expected: &self.expected,
            arrival,
        }
    }
}

/// The arrival of a socket. Dropping it forgets the socket.
struct ExpectedArrival<'a> {
    expected: &'a Mutex<Vec<Expected>>,
    arrival: oneshot::Receiver<TcpStream>,
}

impl Drop for ExpectedArrival<'_> {
    fn drop(&mut self) {
        self.arrival.close();
        lock(self.expected).retain(|expected| !expected.arrived.is_closed());
    }
}

/// Accepts connections forever, and gives each to the call that expects it.
async fn accept(listener: TcpListener, expected: Arc<Mutex<Vec<Expected>>>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Until the tunnel has taken it over, its end is a reset too.
                let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
                if let Some(arrived) = claim(&expected, canonical(peer)) {
                    // If the call has been given up, the stream is dropped.
                    drop(arrived.send(stream));
                } else {
                    tracing::debug!("closed a connection from {peer}, which is not redirected");
                }
            }
            Err(error) => {
                tracing::warn!("cannot accept a redirected connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Removes the socket with this local address from those that are expected. The kernel has chosen the address before the
/// first packet of the connection, so no connection arrives whose address is not yet known.
fn claim(expected: &Mutex<Vec<Expected>>, peer: SocketAddr) -> Option<oneshot::Sender<TcpStream>> {
    let mut expected = lock(expected);
    let mut sockets = expected.iter();
    let index = sockets.position(|expected| expected.socket.local_addr() == Some(peer))?;
    Some(expected.swap_remove(index).arrived)
}

fn listen(socket: TcpSocket, ip: IpAddr) -> io::Result<TcpListener> {
    socket.bind(SocketAddr::new(ip, 0))?;
    socket.listen(BACKLOG)
}

fn lock(expected: &Mutex<Vec<Expected>>) -> MutexGuard<'_, Vec<Expected>> {
    expected.lock().unwrap_or_else(PoisonError::into_inner)
}
