//! The local listeners.

use std::{
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpStream},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, getpeername, socket_with},
};
use tokio::{net::TcpListener, task::spawn_blocking};

use crate::forward::redirect::{entrance::Entrance, remote_socket::RemoteSocket};

#[tokio::test]
async fn a_stranger_is_closed_at_once() {
    let entrance = Entrance::bind().unwrap();
    let addresses = entrance.addresses();
    for address in [Some(addresses.v4), addresses.v6].into_iter().flatten() {
        let stranger = TcpStream::connect(address).unwrap();
        assert_closed(stranger).await;
    }
    // The entrance still works.
    assert_enters(
        &entrance,
        AddressFamily::INET,
        "192.0.2.1:80",
        SocketFlags::empty(),
    )
    .await;
}

#[tokio::test]
async fn strangers_do_not_take_the_place_of_a_socket() {
    let entrance = Entrance::bind().unwrap();
    let address = entrance.addresses().v4;
    let strangers: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    assert_enters(
        &entrance,
        AddressFamily::INET,
        "192.0.2.1:80",
        SocketFlags::empty(),
    )
    .await;
    for stranger in strangers {
        assert_closed(stranger).await;
    }
}

#[tokio::test]
async fn a_non_blocking_socket_is_in_progress() {
    let entrance = Entrance::bind().unwrap();
    let flags = SocketFlags::NONBLOCK;
    let result = enter(&entrance, AddressFamily::INET, "192.0.2.1:80", flags).await;
    assert_eq!(result, Err(Errno::INPROGRESS));
}

#[tokio::test]
async fn ipv6_sockets_enter_where_there_is_no_ipv6_listener() {
    let v4 = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let entrance = Entrance::new(v4, None).unwrap();
    let flags = SocketFlags::empty();
    assert_enters(&entrance, AddressFamily::INET6, "[2001:db8::1]:80", flags).await;
    let mapped = "[::ffff:192.0.2.1]:80";
    assert_enters(&entrance, AddressFamily::INET6, mapped, flags).await;
}

async fn assert_enters(
    entrance: &Entrance,
    family: AddressFamily,
    destination: &str,
    flags: SocketFlags,
) {
    assert_eq!(enter(entrance, family, destination, flags).await, Ok(()));
}

/// Makes a new socket enter, and compares both ends of the connection.
async fn enter(
    entrance: &Entrance,
    family: AddressFamily,
    destination: &str,
    flags: SocketFlags,
) -> Result<(), Errno> {
    let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
    let destination: SocketAddr = destination.parse().unwrap();
    let remote = RemoteSocket::new(socket.try_clone().unwrap(), destination).expect("a socket");
    let (stream, result) = entrance.enter(remote).await.expect("a connection");
    let peer = getpeername(&socket).unwrap().expect("an address");
    let peer = SocketAddr::try_from(peer).unwrap();
    assert_eq!(peer.port(), stream.local_addr().unwrap().port());
    result
}

async fn assert_closed(mut stranger: TcpStream) {
    let read = spawn_blocking(move || stranger.read(&mut [0]))
        .await
        .unwrap();
    match read {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("a stranger is not closed: {other:?}"),
    }
}
