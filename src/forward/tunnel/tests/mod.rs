//! Two ends of a tunnel in one process, over a stream of TCP.

mod asking;
mod carrying;
mod resets;

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::timeout,
};

use super::{
    Tunnel, TunnelFault, TunnelRole,
    connect::{connect, connect_first},
    handle::TunnelHandle,
    listener::{ForwardListener, ListenRoute},
    messages::{OpenTarget, RefusalKind},
    shared::{FlowLabel, TunnelCounts, TunnelEvent},
};
use crate::{
    Key, Stream,
    forward::{
        policy::{ForwardPolicy, ForwardTarget},
        specs::{BindAddress, ForwardSpec, ListenAt},
    },
    places::Places,
};

/// A guard against a hang, and no budget.
const LIMIT: Duration = Duration::from_secs(60);

/// Two ends that run.
struct TestTunnel {
    near: JoinHandle<Result<(), TunnelFault>>,
    far: JoinHandle<Result<(), TunnelFault>>,
    handle: TunnelHandle,
    far_handle: TunnelHandle,
    counts: [Arc<TunnelCounts>; 2],
    events: Arc<Events>,
    /// The ports of the near listeners.
    ports: Vec<u16>,
}

/// What the two ends have reported.
#[derive(Default)]
struct Events {
    seen: Mutex<Vec<TunnelEvent>>,
    changed: Notify,
}

impl Events {
    fn observer(self: &Arc<Self>) -> super::TunnelObserver {
        let events = Arc::clone(self);
        Arc::new(move |event| {
            events.seen.lock().unwrap().push(event);
            events.changed.notify_waiters();
        })
    }

    /// Waits until an event is there.
    async fn wait(&self, wanted: impl Fn(&TunnelEvent) -> bool) -> TunnelEvent {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if let Some(event) = self.seen.lock().unwrap().iter().find(|event| wanted(event)) {
                    return event.clone();
                }
                changed.await;
            }
        };
        timeout(LIMIT, waiting).await.expect("the event is missing")
    }
}

fn port_of(address: SocketAddr) -> ForwardTarget {
    ForwardTarget::Tcp {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

fn any_port() -> ListenAt {
    ListenAt::Tcp {
        bind: BindAddress::Loopback,
        port: 0,
    }
}

/// Returns both ends of a stream.
async fn streams() -> [Stream; 2] {
    let key = Key::generate().unwrap();
    let builder = Stream::builder(&key);
    let listener = builder.bind("127.0.0.1:0").await.unwrap();
    let dialing = builder.connect(listener.local_addr());
    let (near, far) = tokio::join!(dialing, listener.accept());
    [near.unwrap(), far.unwrap()]
}

/// Starts a tunnel whose near end listens for each of these routes, and whose far end listens for `remote`.
async fn tunnel(routes: Vec<ListenRoute>, remote: Vec<ForwardSpec>) -> TestTunnel {
    tunnel_with_places(routes, remote, None).await
}

async fn tunnel_with_places(
    routes: Vec<ListenRoute>,
    remote: Vec<ForwardSpec>,
    places: Option<Places>,
) -> TestTunnel {
    let [mut near, mut far] = streams().await;
    let events = Arc::<Events>::default();
    let role = TunnelRole {
        remote,
        ..TunnelRole::default()
    };
    let mut near_end = Tunnel::near(role, events.observer());
    let mut ports = Vec::new();
    for route in routes {
        let listener = ForwardListener::bind(&any_port()).await.unwrap();
        ports.extend(listener.port());
        near_end.add_listener(listener, route);
    }
    let role = TunnelRole {
        policy: Some(ForwardPolicy::Any),
        may_listen: true,
        places,
        remote: Vec::new(),
    };
    let far_end = Tunnel::far(role, Arc::new(|_| ()));
    TestTunnel {
        handle: near_end.handle(),
        far_handle: far_end.handle(),
        counts: [near_end.counts(), far_end.counts()],
        near: tokio::spawn(async move { near_end.run(&mut near).await }),
        far: tokio::spawn(async move { far_end.run(&mut far).await }),
        events,
        ports,
    }
}

impl TestTunnel {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.ports[0]))
            .await
            .unwrap()
    }

    /// Closes the tunnel, and checks that both ends end in order.
    async fn close(self) {
        self.handle.close();
        timeout(LIMIT, self.near).await.unwrap().unwrap().unwrap();
        timeout(LIMIT, self.far).await.unwrap().unwrap().unwrap();
        for counts in self.counts {
            assert_eq!(counts.open.load(Ordering::Relaxed), 0);
        }
    }
}

/// Starts a tunnel, and connects two sockets through it.
async fn joined() -> (TestTunnel, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    let tunnel = tunnel(vec![ListenRoute::To(target)], Vec::new()).await;
    let client = tunnel.connect().await;
    let (server, _) = listener.accept().await.unwrap();
    (tunnel, client, server)
}

/// Checks that the next read finds a reset.
async fn is_reset(socket: &mut TcpStream) {
    let error = timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// Writes until nothing is taken any more.
async fn fill(socket: &mut TcpStream) {
    let block = vec![0; 1 << 20];
    while timeout(Duration::from_millis(500), socket.write_all(&block))
        .await
        .is_ok()
    {}
}

/// Starts a server that sends back what it receives.
async fn echo_server() -> ForwardTarget {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    target
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 31 + at / 251).to_le_bytes()[0])
        .collect()
}

/// Sends bytes and an end, and returns what comes back.
async fn exchange(mut socket: TcpStream, bytes: Vec<u8>) -> Vec<u8> {
    let (mut read, mut write) = socket.split();
    let mut back = Vec::new();
    let sending = async {
        write.write_all(&bytes).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let receiving = read.read_to_end(&mut back);
    let ((), received) = timeout(LIMIT, async { tokio::join!(sending, receiving) })
        .await
        .unwrap();
    received.unwrap();
    back
}

/// Waits until the condition holds.
async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, waiting).await.expect("it does not hold");
}

/// Returns a port of which connections get no answer, and what keeps it so.
async fn unanswering_port() -> (ForwardTarget, impl Sized) {
    let listener = tokio::net::TcpSocket::new_v4().unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1).unwrap();
    let target = port_of(listener.local_addr().unwrap());
    // Its queue is filled.
    let mut queued = Vec::new();
    while let Ok(Ok(socket)) = timeout(Duration::from_millis(500), connect(&target)).await {
        queued.push(socket);
    }
    (target, (listener, queued))
}
