//! Resets, and the death of a tunnel.

use super::*;

#[tokio::test]
async fn a_reset_arrives_as_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    let tunnel = tunnel(vec![ListenRoute::To(target)], Vec::new()).await;
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

#[tokio::test]
async fn when_the_tunnel_dies_programs_see_a_reset_and_no_end() {
    let (tunnel, mut client, mut server) = joined().await;
    client.write_all(b"x").await.unwrap();
    server.read_u8().await.unwrap();
    tunnel.far.abort();
    for socket in [&mut client, &mut server] {
        is_reset(socket).await;
    }
    let ended = timeout(LIMIT, tunnel.near).await.unwrap().unwrap();
    assert!(matches!(ended, Err(TunnelFault::Stream(_))), "{ended:?}");
}

#[tokio::test]
async fn a_reset_of_a_connection_that_is_held_up_is_noticed() {
    let (tunnel, mut client, mut server) = joined().await;
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

#[tokio::test]
async fn a_program_that_waits_for_its_target_sees_a_reset_when_the_tunnel_dies() {
    let (target, _unanswering) = unanswering_port().await;
    let tunnel = tunnel(vec![ListenRoute::To(target)], Vec::new()).await;
    let mut client = tunnel.connect().await;
    let connecting = || tunnel.far_handle.shared.lock().connecting.len();
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

#[tokio::test]
async fn an_answer_before_the_end_of_an_upload_arrives() {
    let answer = pattern(3000);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = port_of(listener.local_addr().unwrap());
    let tunnel = tunnel(vec![ListenRoute::To(target)], Vec::new()).await;
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

#[tokio::test]
async fn an_answer_through_unix_sockets_arrives_before_the_end_of_an_upload() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let bytes = |name: &str| path(name).as_os_str().as_encoded_bytes().to_vec();
    let server = UnixListener::bind(path("there")).unwrap();
    let spec = ForwardSpec {
        listen: ListenAt::Unix(bytes("here")),
        target: ForwardTarget::Unix(bytes("there")),
    };
    let tunnel = tunnel(Vec::new(), vec![spec]).await;
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

#[tokio::test]
async fn a_slow_reader_gets_every_byte_before_the_reset() {
    let (tunnel, mut client, mut server) = joined().await;
    client.write_all(b"unread").await.unwrap();
    server.read_u8().await.unwrap();
    // More than the client's kernel takes while the client does not read.
    let answer = pattern(1 << 20);
    server.write_all(&answer).await.unwrap();
    until(|| tunnel.counts[1].sent.load(Ordering::Relaxed) == 1 << 20).await;
    drop(server);
    // The near end knows of the reset before the client reads.
    until(|| tunnel.handle.shared.lock().mux.is_all_received()).await;
    let (received, ended) = read_all(&mut client).await;
    assert!(received == answer, "{} bytes", received.len());
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    tunnel.close().await;
}
