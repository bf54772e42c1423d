//! Bytes of many connections.

use super::*;

#[tokio::test]
async fn bytes_and_ends_pass_in_both_directions() {
    let tunnel = tunnel(vec![ListenRoute::To(echo_server().await)], Vec::new()).await;
    for length in [0, 1, 100, 70_000, 20 << 20] {
        let bytes = pattern(length);
        let back = exchange(tunnel.connect().await, bytes.clone()).await;
        assert!(back == bytes, "{length} bytes came back as {}", back.len());
    }
    tunnel.close().await;
}

#[tokio::test]
async fn many_connections_at_once_are_kept_apart() {
    let tunnel = tunnel(vec![ListenRoute::To(echo_server().await)], Vec::new()).await;
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

#[tokio::test]
async fn a_connection_that_is_not_read_holds_up_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stuck = port_of(listener.local_addr().unwrap());
    let routes = vec![ListenRoute::To(echo_server().await), ListenRoute::To(stuck)];
    let tunnel = tunnel(routes, Vec::new()).await;
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

#[tokio::test]
async fn bytes_that_are_under_way_when_the_tunnel_is_closed_arrive() {
    let (tunnel, mut client, mut server) = joined().await;
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

#[tokio::test]
async fn connections_that_come_and_go_leave_nothing() {
    let tunnel = tunnel(vec![ListenRoute::To(echo_server().await)], Vec::new()).await;
    for _ in 0..500 {
        let mut socket = tunnel.connect().await;
        socket.write_all(b"x").await.unwrap();
        timeout(LIMIT, socket.read_u8()).await.unwrap().unwrap();
    }
    let count = tunnel.handle.shared.lock().mux.count();
    assert!(count < 10, "{count} connections are left");
    tunnel.close().await;
}
