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
