//! What one end asks of the other: connections and listeners.

use super::*;
use crate::forward::{
    mux::{Mux, MuxEnd},
    tunnel::messages::{TunnelMessage, encode},
};

#[tokio::test]
async fn the_far_end_listens_for_the_near_one() {
    let spec = ForwardSpec {
        listen: any_port(),
        target: echo_server().await,
    };
    let tunnel = tunnel(Vec::new(), vec![spec]).await;
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

#[tokio::test]
async fn the_tunnel_ends_if_the_far_end_cannot_listen() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let spec = ForwardSpec {
        listen: ListenAt::Tcp {
            bind: BindAddress::Loopback,
            port,
        },
        target: port_of(taken.local_addr().unwrap()),
    };
    let tunnel = tunnel(Vec::new(), vec![spec]).await;
    let ended = timeout(LIMIT, tunnel.near).await.unwrap().unwrap();
    let Err(TunnelFault::CannotListen(text)) = ended else {
        panic!("{ended:?}");
    };
    assert!(text.contains(&port.to_string()), "{text}");
}

#[tokio::test]
async fn a_program_asks_for_its_target_by_socks() {
    let ForwardTarget::Tcp { port, .. } = echo_server().await else {
        unreachable!()
    };
    let tunnel = tunnel(vec![ListenRoute::Socks], Vec::new()).await;
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

#[tokio::test]
async fn unix_sockets_are_both_ends_of_a_connection() {
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
    let tunnel = tunnel(Vec::new(), vec![ForwardSpec { listen: at, target }]).await;
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

#[tokio::test]
async fn a_refused_connection_is_a_reset() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(unused.local_addr().unwrap());
    drop(unused);
    let tunnel = tunnel(vec![ListenRoute::To(target)], Vec::new()).await;
    let mut socket = tunnel.connect().await;
    is_reset(&mut socket).await;
    let refused = |event: &TunnelEvent| matches!(event, TunnelEvent::Refused(..));
    tunnel.events.wait(refused).await;
    tunnel.close().await;
}

#[tokio::test]
async fn a_connection_that_is_given_up_is_not_made() {
    let (target, _unanswering) = unanswering_port().await;
    let tunnel = tunnel(Vec::new(), Vec::new()).await;
    let target = OpenTarget::Connect(target);
    let label = FlowLabel {
        from: String::new(),
        to: String::new(),
    };
    let connecting = || tunnel.far_handle.shared.lock().connecting.len();
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

#[tokio::test]
async fn connections_beyond_the_places_of_a_peer_are_refused_until_one_ends() {
    let (all, own) = (Arc::new(Semaphore::new(3)), Arc::new(Semaphore::new(2)));
    let places = Places::new(Arc::clone(&all), Arc::clone(&own));
    let routes = vec![ListenRoute::To(echo_server().await)];
    let tunnel = tunnel_with_places(routes, Vec::new(), Some(places)).await;
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let mut socket = tunnel.connect().await;
        socket.write_all(b"x").await.unwrap();
        timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap();
        sockets.push(socket);
    }
    assert_eq!((all.available_permits(), own.available_permits()), (1, 0));
    let mut refused = tunnel.connect().await;
    is_reset(&mut refused).await;
    let full = |event: &TunnelEvent| matches!(event, TunnelEvent::Refused(_, refusal) if refusal.kind == RefusalKind::Full);
    tunnel.events.wait(full).await;
    drop(sockets.pop());
    until(|| own.available_permits() == 1).await;
    assert_eq!(
        exchange(tunnel.connect().await, pattern(9)).await,
        pattern(9)
    );
    drop(sockets);
    until(|| own.available_permits() == 2).await;
    assert_eq!(all.available_permits(), 3);
    tunnel.close().await;
}

#[tokio::test]
async fn a_peer_with_another_version_is_named() {
    let [mut near, mut far] = streams().await;
    let hello = TunnelMessage::Hello {
        version: 99,
        program: "9.9".to_owned(),
    };
    let hello = encode(&hello).unwrap();
    let mut mux = Mux::new(MuxEnd::Even);
    mux.send_message(hello);
    let mut frame = [0; 200];
    let count = mux.write_control(&mut frame);
    far.write_all(&frame[..count]).await.unwrap();
    far.flush().await.unwrap();
    let tunnel = Tunnel::near(TunnelRole::default(), Arc::new(|_| ()));
    let ended = timeout(LIMIT, tunnel.run(&mut near)).await.unwrap();
    assert!(ended.unwrap_err().to_string().contains("9.9"));
}
