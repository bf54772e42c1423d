//! Two ends of a tunnel in one process, over a stream of TCP.

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::timeout,
};

use super::{
    AwaitingPlace, FurtherStreams, Tunnel, TunnelFault, TunnelRole,
    flows::{FlowLabel, TunnelCounts, TunnelEvent, TunnelHandle, TunnelState},
    listener::{ForwardListener, ListenRoute},
    messages::{OpenTarget, RefusalKind, TunnelMessage, encode},
    peer::{connect, connect_first},
};
use crate::{
    Key, Listener, Stream, StreamConfig,
    forward::{
        mux::{Mux, MuxEnd},
        policy::{ForwardPolicy, ForwardTarget},
        specs::{BindAddress, ForwardSpec, ListenAt},
    },
    places::{Places, Share, SharedPlaces},
};

/// Runs each of these tests with a tunnel of one, two and four streams.
macro_rules! with_streams {
    ($($test:ident)+) => {
        $(
            mod $test {
                #[tokio::test]
                async fn with_one_stream() {
                    super::$test(1).await;
                }

                #[tokio::test]
                async fn with_two_streams() {
                    super::$test(2).await;
                }

                #[tokio::test]
                async fn with_four_streams() {
                    super::$test(4).await;
                }
            }
        )+
    };
}

with_streams! {
    bytes_and_ends_pass_in_both_directions
    many_connections_at_once_are_kept_apart
    a_connection_that_is_not_read_holds_up_no_other
    bytes_that_are_under_way_when_the_tunnel_is_closed_arrive
    connections_that_come_and_go_leave_nothing
    the_far_end_listens_for_the_near_one
    the_tunnel_ends_if_the_far_end_cannot_listen
    a_program_asks_for_its_target_by_socks
    unix_sockets_are_both_ends_of_a_connection
    a_refused_connection_is_a_reset
    a_target_whose_name_is_longer_than_any_is_refused_and_not_kept
    a_connection_that_is_given_up_is_not_made
    connections_beyond_the_places_of_a_peer_are_refused_until_one_ends
    a_reset_arrives_as_a_reset
    when_the_tunnel_dies_programs_see_a_reset_and_no_end
    a_reset_of_a_connection_that_is_held_up_is_noticed
    a_program_that_waits_for_its_target_sees_a_reset_when_the_tunnel_dies
    an_answer_before_the_end_of_an_upload_arrives
    an_answer_through_unix_sockets_arrives_before_the_end_of_an_upload
    a_slow_reader_gets_every_byte_before_the_reset
}

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
async fn pair(key: &Key) -> [Stream; 2] {
    let builder = Stream::builder(key);
    let listener = builder.bind("127.0.0.1:0").await.unwrap();
    let dialing = builder.connect(listener.local_addr());
    let (near, far) = tokio::join!(dialing, listener.accept());
    [near.unwrap(), far.unwrap()]
}

/// Starts a tunnel of so many streams whose near end listens for each of these routes, and whose far end listens for `remote`.
async fn tunnel(streams: u16, routes: Vec<ListenRoute>, remote: Vec<ForwardSpec>) -> TestTunnel {
    tunnel_with_places(streams, routes, remote, None).await
}

async fn tunnel_with_places(
    streams: u16,
    routes: Vec<ListenRoute>,
    remote: Vec<ForwardSpec>,
    places: Option<Places>,
) -> TestTunnel {
    let key = Key::generate().unwrap();
    let [mut near, mut far] = pair(key.key()).await;
    let events = Arc::<Events>::default();
    let role = TunnelRole {
        remote,
        further: Some(further(streams, key.key(), None)),
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
        further: Some(further(streams, key.key(), Some(own_place()))),
    };
    let far_end = Tunnel::far(role, Arc::new(|_| ()));
    let tunnel = TestTunnel {
        handle: near_end.handle(),
        far_handle: far_end.handle(),
        counts: [near_end.counts(), far_end.counts()],
        near: tokio::spawn(async move { near_end.run(&mut near).await }),
        far: tokio::spawn(async move { far_end.run(&mut far).await }),
        events,
        ports,
    };
    let ends = [&tunnel.handle.end, &tunnel.far_handle.end].map(Arc::clone);
    until(|| {
        ends.iter()
            .all(|end| end.count() == usize::from(streams) || end.over.is_cancelled())
    })
    .await;
    tunnel
}

/// Returns how an end gets so many streams, the first of which has this key.
fn further(streams: u16, key: &Key, place: Option<AwaitingPlace>) -> FurtherStreams {
    FurtherStreams {
        streams,
        most: streams,
        is_chosen: true,
        key: key.clone(),
        config: StreamConfig::default(),
        place,
    }
}

/// Returns the place of a far end that waits for further streams at a listener of its own.
fn own_place() -> AwaitingPlace {
    AwaitingPlace::Own(Arc::new(|key| {
        async move {
            let listener = Listener::bind("127.0.0.1:0", key, StreamConfig::default()).await;
            listener.map_err(|error| error.to_string())
        }
        .boxed()
    }))
}

impl TunnelHandle {
    /// Returns a sum over all streams.
    fn sum(&self, count: impl Fn(&TunnelState) -> usize) -> usize {
        let streams = self.end.streams();
        streams.iter().map(|stream| count(&stream.lock())).sum()
    }

    /// Returns the number of connections that are being made for the peer.
    fn connecting(&self) -> usize {
        self.sum(|state| state.connecting.len())
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
async fn joined(streams: u16) -> (TestTunnel, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    let tunnel = tunnel(streams, vec![ListenRoute::To(target)], Vec::new()).await;
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
    let lookups = Arc::new(Semaphore::new(1));
    let connecting = || connect(&target, Arc::clone(&lookups), None);
    while let Ok(Ok(socket)) = timeout(Duration::from_millis(500), connecting()).await {
        queued.push(socket);
    }
    (target, (listener, queued))
}

async fn bytes_and_ends_pass_in_both_directions(streams: u16) {
    let tunnel = tunnel(
        streams,
        vec![ListenRoute::To(echo_server().await)],
        Vec::new(),
    )
    .await;
    for length in [0, 1, 100, 70_000, 20 << 20] {
        let bytes = pattern(length);
        let back = exchange(tunnel.connect().await, bytes.clone()).await;
        assert!(back == bytes, "{length} bytes came back as {}", back.len());
    }
    tunnel.close().await;
}

async fn many_connections_at_once_are_kept_apart(streams: u16) {
    let tunnel = tunnel(
        streams,
        vec![ListenRoute::To(echo_server().await)],
        Vec::new(),
    )
    .await;
    let mut exchanges = Vec::new();
    for number in 0..200 {
        let bytes = pattern(1000 * number + 1);
        let socket = tunnel.connect().await;
        exchanges.push(async move { exchange(socket, bytes.clone()).await == bytes });
    }
    let all = futures::future::join_all(exchanges).await;
    assert!(all.into_iter().all(|is_same| is_same));
    tunnel.close().await;
}

async fn a_connection_that_is_not_read_holds_up_no_other(streams: u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stuck = port_of(listener.local_addr().unwrap());
    let routes = vec![ListenRoute::To(echo_server().await), ListenRoute::To(stuck)];
    let tunnel = tunnel(streams, routes, Vec::new()).await;
    let mut unread = TcpStream::connect(("127.0.0.1", tunnel.ports[1]))
        .await
        .unwrap();
    let (server, _) = listener.accept().await.unwrap();
    fill(&mut unread).await;
    let bytes = pattern(8 << 20);
    let back = exchange(tunnel.connect().await, bytes.clone()).await;
    assert!(back == bytes);
    drop((server, unread));
    tunnel.close().await;
}

async fn bytes_that_are_under_way_when_the_tunnel_is_closed_arrive(streams: u16) {
    let (tunnel, mut client, mut server) = joined(streams).await;
    let bytes = pattern(3 << 20);
    let sending = bytes.clone();
    let client = tokio::spawn(async move {
        client.write_all(&sending).await.unwrap();
        client.shutdown().await.unwrap();
        // The program exits without reading the end.
    });
    server.read_u8().await.unwrap();
    tunnel.handle.close();
    let mut rest = Vec::new();
    timeout(LIMIT, server.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest == bytes[1..]);
    drop(server);
    client.await.unwrap();
    tunnel.close().await;
}

async fn connections_that_come_and_go_leave_nothing(streams: u16) {
    let tunnel = tunnel(
        streams,
        vec![ListenRoute::To(echo_server().await)],
        Vec::new(),
    )
    .await;
    for _ in 0..500 {
        let mut socket = tunnel.connect().await;
        socket.write_all(b"x").await.unwrap();
        timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap();
    }
    let count = tunnel.handle.sum(|state| state.mux.count());
    assert!(count < 10, "{count} connections are left");
    tunnel.close().await;
}

async fn the_far_end_listens_for_the_near_one(streams: u16) {
    let spec = ForwardSpec {
        listen: any_port(),
        target: echo_server().await,
    };
    let tunnel = tunnel(streams, Vec::new(), vec![spec]).await;
    let listening = |event: &TunnelEvent| matches!(event, TunnelEvent::Listening { .. });
    let TunnelEvent::Listening { port, .. } = tunnel.events.wait(listening).await else {
        unreachable!()
    };
    let socket = TcpStream::connect(("127.0.0.1", port.unwrap()))
        .await
        .unwrap();
    let bytes = pattern(100_000);
    assert!(exchange(socket, bytes.clone()).await == bytes);
    tunnel.close().await;
}

async fn the_tunnel_ends_if_the_far_end_cannot_listen(streams: u16) {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let spec = ForwardSpec {
        listen: ListenAt::Tcp {
            bind: BindAddress::Loopback,
            port,
        },
        target: port_of(taken.local_addr().unwrap()),
    };
    let tunnel = tunnel(streams, Vec::new(), vec![spec]).await;
    let ended = timeout(LIMIT, tunnel.near).await.unwrap().unwrap();
    let Err(TunnelFault::CannotListen(text)) = ended else {
        panic!("{ended:?}");
    };
    assert!(text.contains(&port.to_string()), "{text}");
}

async fn a_program_asks_for_its_target_by_socks(streams: u16) {
    let ForwardTarget::Tcp { port, .. } = echo_server().await else {
        unreachable!()
    };
    let tunnel = tunnel(streams, vec![ListenRoute::Socks], Vec::new()).await;
    let mut socket = tunnel.connect().await;
    // All at once, as a program may that does not wait for answers.
    let mut request = vec![5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1];
    request.extend(port.to_be_bytes());
    request.extend(b"hello");
    socket.write_all(&request).await.unwrap();
    let mut answer = [0; 2 + 10 + 5];
    timeout(LIMIT, socket.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer[..4], [5, 0, 5, 0]);
    assert_eq!(&answer[12..], b"hello");
    drop(socket);
    let mut socket = tunnel.connect().await;
    socket
        .write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 1])
        .await
        .unwrap();
    let mut answer = [0; 12];
    timeout(LIMIT, socket.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer[3], 5, "port 1 refuses connections");
    tunnel.close().await;
}

async fn unix_sockets_are_both_ends_of_a_connection(streams: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (
        directory.path().join("here"),
        directory.path().join("there"),
    );
    let server = UnixListener::bind(&there).unwrap();
    let path = |path: &std::path::Path| path.as_os_str().as_encoded_bytes().to_vec();
    let at = ListenAt::Unix(path(&here));
    let listener = ForwardListener::bind(&at).await.unwrap();
    // A second listener finds that the first one is alive.
    assert!(ForwardListener::bind(&at).await.is_err());
    drop(listener);
    assert!(!here.exists());
    // A file that is no socket stays.
    std::fs::write(&here, "kept").unwrap();
    assert!(ForwardListener::bind(&at).await.is_err());
    assert_eq!(std::fs::read(&here).unwrap(), b"kept");
    std::fs::remove_file(&here).unwrap();
    // A socket at which no process listens is replaced.
    drop(UnixListener::bind(&here).unwrap());
    let target = ForwardTarget::Unix(path(&there));
    let tunnel = tunnel(
        streams,
        Vec::new(),
        vec![ForwardSpec { listen: at, target }],
    )
    .await;
    let listening = |event: &TunnelEvent| matches!(event, TunnelEvent::Listening { .. });
    tunnel.events.wait(listening).await;
    let mode = std::fs::metadata(&here).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = UnixStream::connect(&here).await.unwrap();
    let (mut accepted, _) = server.accept().await.unwrap();
    client.write_all(b"ping").await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = Vec::new();
    timeout(LIMIT, accepted.read_to_end(&mut received))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(received, b"ping");
    drop(accepted);
    timeout(LIMIT, client.read_to_end(&mut received))
        .await
        .unwrap()
        .unwrap();
    tunnel.close().await;
}

async fn a_refused_connection_is_a_reset(streams: u16) {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(unused.local_addr().unwrap());
    drop(unused);
    let tunnel = tunnel(streams, vec![ListenRoute::To(target)], Vec::new()).await;
    let mut socket = tunnel.connect().await;
    is_reset(&mut socket).await;
    let refused = |event: &TunnelEvent| matches!(event, TunnelEvent::Refused(..));
    tunnel.events.wait(refused).await;
    tunnel.close().await;
}

async fn a_target_whose_name_is_longer_than_any_is_refused_and_not_kept(streams: u16) {
    let tunnel = tunnel(streams, Vec::new(), Vec::new()).await;
    let label = || FlowLabel {
        from: "a test".to_owned(),
        to: "a long name".to_owned(),
    };
    for bytes in [256, 2000] {
        let target = OpenTarget::Connect(ForwardTarget::Tcp {
            host: "x".repeat(bytes),
            port: 1,
        });
        let refused = tunnel.handle.open(&target, label()).await;
        let why = refused.err().unwrap().text;
        assert_eq!(why, "the name has more than 255 bytes");
    }
    assert_eq!(tunnel.far_handle.connecting(), 0);
}

async fn a_connection_that_is_given_up_is_not_made(streams: u16) {
    let (target, _unanswering) = unanswering_port().await;
    let tunnel = tunnel(streams, Vec::new(), Vec::new()).await;
    let target = OpenTarget::Connect(target);
    let label = FlowLabel {
        from: String::new(),
        to: String::new(),
    };
    let connecting = || tunnel.far_handle.connecting();
    tokio::select! {
        _ = tunnel.handle.open(&target, label) => panic!("the port has answered"),
        () = until(|| connecting() == 1) => {}
    }
    until(|| connecting() == 0).await;
    tunnel.close().await;
}

#[tokio::test]
async fn an_address_without_an_answer_does_not_hold_up_the_next_one() {
    let (target, _unanswering) = unanswering_port().await;
    let ForwardTarget::Tcp { port, .. } = target else {
        unreachable!()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let addresses = [SocketAddr::from(([127, 0, 0, 1], port)), at];
    // The kernel would try the first address for two minutes.
    let connected = timeout(LIMIT, connect_first(&addresses)).await.unwrap();
    assert_eq!(connected.unwrap().peer_addr().unwrap(), at);
}

async fn connections_beyond_the_places_of_a_peer_are_refused_until_one_ends(streams: u16) {
    let share = Share {
        all: 3,
        of_one_key: 2,
    };
    let own = SharedPlaces::new(share).of(Key::from_secret(&[1; 32]).id());
    let places = own.clone();
    let routes = vec![ListenRoute::To(echo_server().await)];
    let tunnel = tunnel_with_places(streams, routes, Vec::new(), Some(places)).await;
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let mut socket = tunnel.connect().await;
        socket.write_all(b"x").await.unwrap();
        timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap();
        sockets.push(socket);
    }
    assert!(own.have_share());
    let mut refused = tunnel.connect().await;
    is_reset(&mut refused).await;
    let full = |event: &TunnelEvent| matches!(event, TunnelEvent::Refused(_, refusal) if refusal.kind == RefusalKind::Full);
    tunnel.events.wait(full).await;
    drop(sockets.pop());
    until(|| !own.have_share()).await;
    assert_eq!(
        exchange(tunnel.connect().await, pattern(9)).await,
        pattern(9)
    );
    drop(sockets);
    until(|| [own.take(), own.take()].iter().all(Option::is_some)).await;
    tunnel.close().await;
}

#[tokio::test]
async fn a_peer_with_another_version_is_named() {
    let [mut near, mut far] = pair(Key::generate().unwrap().key()).await;
    let hello = TunnelMessage::Hello {
        version: 99,
        program: "9.9".to_owned(),
    };
    let hello = encode(&hello).unwrap();
    let mut mux = Mux::new(MuxEnd::Even, &Arc::default());
    mux.send_message(hello);
    let mut frame = [0; 200];
    let count = mux.write_control(&mut frame);
    far.write_all(&frame[..count]).await.unwrap();
    far.flush().await.unwrap();
    let tunnel = Tunnel::near(TunnelRole::default(), Arc::new(|_| ()));
    let ended = timeout(LIMIT, tunnel.run(&mut near)).await.unwrap();
    assert!(ended.unwrap_err().to_string().contains("9.9"));
}

async fn a_reset_arrives_as_a_reset(streams: u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    let tunnel = tunnel(streams, vec![ListenRoute::To(target)], Vec::new()).await;
    for is_server in [true, false] {
        let mut client = tunnel.connect().await;
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(b"x").await.unwrap();
        server.read_u8().await.unwrap();
        let (ended, mut other) = if is_server {
            (server, client)
        } else {
            (client, server)
        };
        ended.set_zero_linger().unwrap();
        drop(ended);
        is_reset(&mut other).await;
    }
    tunnel.close().await;
}

async fn when_the_tunnel_dies_programs_see_a_reset_and_no_end(streams: u16) {
    let (tunnel, mut client, mut server) = joined(streams).await;
    client.write_all(b"x").await.unwrap();
    server.read_u8().await.unwrap();
    tunnel.far.abort();
    for socket in [&mut client, &mut server] {
        is_reset(socket).await;
    }
    let ended = timeout(LIMIT, tunnel.near).await.unwrap().unwrap();
    assert!(matches!(ended, Err(TunnelFault::Stream(_))), "{ended:?}");
}

async fn a_reset_of_a_connection_that_is_held_up_is_noticed(streams: u16) {
    let (tunnel, mut client, mut server) = joined(streams).await;
    fill(&mut client).await;
    client.set_zero_linger().unwrap();
    drop(client);
    let was_reset =
        |event: &TunnelEvent| matches!(event, TunnelEvent::Closed { is_reset: true, .. });
    tunnel.events.wait(was_reset).await;
    let mut taken = Vec::new();
    let reading = server.read_to_end(&mut taken);
    let error = timeout(LIMIT, reading).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    tunnel.close().await;
}

async fn a_program_that_waits_for_its_target_sees_a_reset_when_the_tunnel_dies(streams: u16) {
    let (target, _unanswering) = unanswering_port().await;
    let tunnel = tunnel(streams, vec![ListenRoute::To(target)], Vec::new()).await;
    let mut client = tunnel.connect().await;
    let connecting = || tunnel.far_handle.connecting();
    until(|| connecting() == 1).await;
    tunnel.far.abort();
    is_reset(&mut client).await;
}

/// Sends without an end, until the other side takes no more.
async fn upload(mut write: impl tokio::io::AsyncWrite + Unpin) {
    let block = pattern(64 << 10);
    while write.write_all(&block).await.is_ok() {}
}

/// Reads until the connection ends in either way, and returns what came.
async fn read_all(mut read: impl tokio::io::AsyncRead + Unpin) -> (Vec<u8>, io::Result<usize>) {
    let mut bytes = Vec::new();
    let ended = timeout(LIMIT, read.read_to_end(&mut bytes)).await.unwrap();
    (bytes, ended)
}

async fn an_answer_before_the_end_of_an_upload_arrives(streams: u16) {
    let answer = pattern(3000);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    let tunnel = tunnel(streams, vec![ListenRoute::To(target)], Vec::new()).await;
    for turn in 0..100 {
        let client = tunnel.connect().await;
        let (server, _) = listener.accept().await.unwrap();
        // Either end may be the one that refuses the rest.
        let (uploads, mut refuses) = if turn % 2 == 0 {
            (client, server)
        } else {
            (server, client)
        };
        let (read, write) = uploads.into_split();
        let uploading = tokio::spawn(upload(write));
        refuses.read_exact(&mut [0; 1000]).await.unwrap();
        refuses.write_all(&answer).await.unwrap();
        // Bytes are unread, so that the kernel resets the connection.
        drop(refuses);
        let (received, _) = read_all(read).await;
        assert!(received == answer, "{turn}: {} bytes", received.len());
        timeout(LIMIT, uploading).await.unwrap().unwrap();
    }
    tunnel.close().await;
}

async fn an_answer_through_unix_sockets_arrives_before_the_end_of_an_upload(streams: u16) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let bytes = |name: &str| path(name).as_os_str().as_encoded_bytes().to_vec();
    let server = UnixListener::bind(path("there")).unwrap();
    let spec = ForwardSpec {
        listen: ListenAt::Unix(bytes("here")),
        target: ForwardTarget::Unix(bytes("there")),
    };
    let tunnel = tunnel(streams, Vec::new(), vec![spec]).await;
    let listening = |event: &TunnelEvent| matches!(event, TunnelEvent::Listening { .. });
    tunnel.events.wait(listening).await;
    let answer = pattern(3000);
    for turn in 0..50 {
        let client = UnixStream::connect(path("here")).await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        let (read, write) = client.into_split();
        let uploading = tokio::spawn(upload(write));
        accepted.read_exact(&mut [0; 1000]).await.unwrap();
        accepted.write_all(&answer).await.unwrap();
        drop(accepted);
        let (received, _) = read_all(read).await;
        assert!(received == answer, "{turn}: {} bytes", received.len());
        timeout(LIMIT, uploading).await.unwrap().unwrap();
    }
    tunnel.close().await;
}

async fn a_slow_reader_gets_every_byte_before_the_reset(streams: u16) {
    let (tunnel, mut client, mut server) = joined(streams).await;
    client.write_all(b"unread").await.unwrap();
    server.read_u8().await.unwrap();
    // More than the client's kernel takes while the client does not read.
    let answer = pattern(1 << 20);
    server.write_all(&answer).await.unwrap();
    until(|| tunnel.counts[1].sent.load(Ordering::Relaxed) == 1 << 20).await;
    drop(server);
    // The near end knows of the reset before the client reads.
    until(|| {
        tunnel
            .handle
            .sum(|state| usize::from(!state.mux.is_all_received()))
            == 0
    })
    .await;
    let (received, ended) = read_all(&mut client).await;
    assert!(received == answer, "{} bytes", received.len());
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    tunnel.close().await;
}

#[tokio::test]
async fn connections_are_spread_over_the_streams() {
    let tunnel = tunnel(4, vec![ListenRoute::To(echo_server().await)], Vec::new()).await;
    let counts = || {
        let streams = tunnel.handle.end.streams();
        let counts = streams.iter().map(|stream| stream.lock().mux.count());
        counts.collect::<Vec<_>>()
    };
    let mut sockets = Vec::new();
    for number in 1..=10 {
        let mut socket = tunnel.connect().await;
        socket.write_all(b"x").await.unwrap();
        timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap();
        sockets.push(socket);
        let counts = counts();
        let least = number / 4;
        assert!(
            counts
                .iter()
                .all(|count| [least, least + 1].contains(count)),
            "{counts:?}"
        );
    }
    // The next connections go to the stream that has lost some. The fourth, the eighth: those of one stream.
    let own = |at: usize| {
        let from = sockets[at].local_addr().unwrap().port();
        let streams = tunnel.handle.end.streams();
        streams
            .iter()
            .position(|stream| stream.lock().has_flow_from(from))
    };
    let (lost, other) = (own(3).unwrap(), own(7).unwrap());
    assert_eq!(lost, other);
    drop((sockets.remove(7), sockets.remove(3)));
    until(|| counts()[lost] == 0).await;
    for _ in 0..2 {
        let mut socket = tunnel.connect().await;
        socket.write_all(b"x").await.unwrap();
        timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap();
        sockets.push(socket);
    }
    assert_eq!(counts()[lost], 2);
    drop(sockets);
    tunnel.close().await;
}

#[tokio::test]
async fn the_memory_of_a_tunnel_is_that_of_all_its_streams() {
    let (listener, target) = silent_server().await;
    let tunnel = tunnel(4, vec![ListenRoute::To(target)], Vec::new()).await;
    let budget = &tunnel.far_handle.end.budget;
    let all = budget.free();
    let mut sockets = Vec::new();
    for number in 1..=8 {
        let mut client = tunnel.connect().await;
        let (server, _) = listener.accept().await.unwrap();
        fill(&mut client).await;
        sockets.push((client, server));
        // Each connection has at least its first window of the one budget.
        assert!(budget.free() <= all - number * (2 << 10));
    }
    drop(sockets);
    until(|| budget.free() == all).await;
    tunnel.close().await;
}

/// Returns a server that reads nothing.
async fn silent_server() -> (TcpListener, ForwardTarget) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    (listener, target)
}

/// The tunnel keeps its promise if a stream fails that is not the first: no connection goes on without the others, and
/// none ends in order.
#[tokio::test]
async fn when_a_further_stream_fails_all_connections_are_reset() {
    for is_near in [true, false] {
        let tunnel = tunnel(3, vec![ListenRoute::To(echo_server().await)], Vec::new()).await;
        let mut sockets = Vec::new();
        for _ in 0..6 {
            let mut socket = tunnel.connect().await;
            socket.write_all(b"x").await.unwrap();
            timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap();
            sockets.push(socket);
        }
        let handle = if is_near {
            &tunnel.handle
        } else {
            &tunnel.far_handle
        };
        // No end says this over a further stream.
        let streams = handle.end.streams();
        streams[2].tell(&TunnelMessage::Listening { id: 0, port: None });
        for socket in &mut sockets {
            is_reset(socket).await;
        }
        for ended in [tunnel.near, tunnel.far] {
            let fault = timeout(LIMIT, ended).await.unwrap().unwrap().unwrap_err();
            let text = fault.to_string();
            assert!(text.contains("invalid message"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_tunnel_goes_on_without_the_streams_that_cannot_be_made() {
    let refusing = || {
        AwaitingPlace::Own(Arc::new(|_| {
            async { Err("no port is left".to_owned()) }.boxed()
        }))
    };
    // The near end connects to the port of the first stream, where nothing listens any more.
    let elsewhere = Key::generate().unwrap();
    let elsewhere = Stream::builder(elsewhere.key()).bind("127.0.0.1:0").await;
    let elsewhere = Arc::new(elsewhere.unwrap());
    let owner = Key::generate().unwrap().id();
    let gone = AwaitingPlace::Shared(elsewhere, owner, Arc::new(|_| ()));
    for place in [Some(refusing()), None, Some(gone)] {
        let key = Key::generate().unwrap();
        let [mut near, mut far] = pair(key.key()).await;
        let events = Arc::<Events>::default();
        let role = TunnelRole {
            further: Some(further(3, key.key(), None)),
            ..TunnelRole::default()
        };
        let near_end = Tunnel::near(role, events.observer());
        let role = TunnelRole {
            policy: Some(ForwardPolicy::Any),
            further: place.map(|place| further(3, key.key(), Some(place))),
            ..TunnelRole::default()
        };
        let far_end = Tunnel::far(role, Arc::new(|_| ()));
        let handle = near_end.handle();
        let near = tokio::spawn(async move { near_end.run(&mut near).await });
        let far = tokio::spawn(async move { far_end.run(&mut far).await });
        let event = events
            .wait(|event| matches!(event, TunnelEvent::Streams { .. }))
            .await;
        let TunnelEvent::Streams { count, .. } = event else {
            unreachable!()
        };
        assert_eq!(count, 1);
        let target = OpenTarget::Connect(echo_server().await);
        let label = FlowLabel {
            from: String::new(),
            to: String::new(),
        };
        assert!(handle.open(&target, label).await.is_ok());
        handle.close();
        timeout(LIMIT, near).await.unwrap().unwrap().unwrap();
        timeout(LIMIT, far).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_tunnel_that_is_closed_while_streams_are_connected_ends_in_order() {
    for pause in 0..40 {
        let key = Key::generate().unwrap();
        let [mut near, mut far] = pair(key.key()).await;
        let role = |place| TunnelRole {
            further: Some(further(4, key.key(), place)),
            ..TunnelRole::default()
        };
        let near_end = Tunnel::near(role(None), Arc::new(|_| ()));
        let far_end = Tunnel::far(role(Some(own_place())), Arc::new(|_| ()));
        let handle = near_end.handle();
        let near = tokio::spawn(async move { near_end.run(&mut near).await });
        let far = tokio::spawn(async move { far_end.run(&mut far).await });
        tokio::time::sleep(Duration::from_micros(500 * pause)).await;
        handle.close();
        timeout(LIMIT, near).await.unwrap().unwrap().unwrap();
        timeout(LIMIT, far).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn streams_are_asked_for_once_and_only_by_the_near_end() {
    let asking = TunnelMessage::AskStreams {
        streams: 2,
        is_chosen: true,
    };
    let awaiting = TunnelMessage::AwaitsStreams {
        streams: 2,
        port: None,
        salt: [0; 16],
    };
    let tunnel = tunnel(2, Vec::new(), Vec::new()).await;
    tunnel.handle.end.streams()[0].tell(&asking);
    let ended = timeout(LIMIT, tunnel.far).await.unwrap().unwrap();
    assert!(matches!(ended, Err(TunnelFault::Message)), "{ended:?}");
    let tunnel = self::tunnel(1, Vec::new(), Vec::new()).await;
    tunnel.far_handle.end.streams()[0].tell(&awaiting);
    let ended = timeout(LIMIT, tunnel.near).await.unwrap().unwrap();
    assert!(matches!(ended, Err(TunnelFault::Message)), "{ended:?}");
}
