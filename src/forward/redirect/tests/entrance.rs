//! The doors, and the sockets that connect to them.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, getpeername, socket_with},
};

use crate::forward::redirect::{
    entrance::Entrance,
    remote_socket::{ConnectingSocket, RemoteSocket},
};

#[tokio::test]
async fn sockets_of_all_families_enter() {
    let entrance = Entrance::default();
    for (family, destination) in [
        (AddressFamily::INET, "192.0.2.1:80"),
        (AddressFamily::INET6, "[2001:db8::1]:80"),
        (AddressFamily::INET6, "[::ffff:192.0.2.1]:80"),
    ] {
        let (socket, connecting) = begin(&entrance, family, destination);
        let mut far = entrance
            .enter(&connecting)
            .await
            .unwrap()
            .into_std()
            .unwrap();
        far.set_nonblocking(false).unwrap();
        let peer = SocketAddr::try_from(getpeername(&socket).unwrap().unwrap()).unwrap();
        assert_eq!(peer.port(), far.local_addr().unwrap().port());
        let mut near = TcpStream::from(socket);
        near.write_all(b"there").unwrap();
        far.write_all(b"back").unwrap();
        drop(connecting);
        let mut received = [0; 5];
        far.read_exact(&mut received).unwrap();
        near.read_exact(&mut received[..4]).unwrap();
        assert_eq!(&received, b"backe");
    }
}

#[tokio::test]
async fn a_socket_connects_until_it_is_accepted() {
    let entrance = Entrance::default();
    let (socket, connecting) = begin(&entrance, AddressFamily::INET, "192.0.2.1:80");
    assert_eq!(getpeername(&socket).unwrap_err(), Errno::NOTCONN);
    assert!(futures::FutureExt::now_or_never(connecting.settled()).is_none());
    let _far = entrance.enter(&connecting).await.unwrap();
    connecting.settled().await;
    assert!(getpeername(&socket).is_ok());
}

#[tokio::test]
async fn a_socket_that_was_given_up_does_not_enter() {
    let entrance = Entrance::default();
    let (_socket, connecting) = begin(&entrance, AddressFamily::INET, "192.0.2.1:80");
    connecting.give_up();
    connecting.settled().await;
    assert!(entrance.enter(&connecting).await.is_err());
}

#[tokio::test]
async fn the_address_of_a_door_names_its_host() {
    let entrance = Entrance::default();
    let hosts = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|host| host.parse().unwrap());
    for host in hosts {
        let door = entrance.v4_door(host).unwrap();
        assert_eq!(entrance.v4_door(host).unwrap(), door);
        assert_eq!(entrance.host_at(door.ip()), Some(host));
    }
    for other in ["127.0.0.1", "127.9.9.9", "::1", "192.0.2.1"] {
        assert_eq!(entrance.host_at(other.parse().unwrap()), None);
    }
}

/// Returns a new socket and its way to the door for a destination.
fn begin(
    entrance: &Entrance,
    family: AddressFamily,
    destination: &str,
) -> (std::os::fd::OwnedFd, ConnectingSocket) {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
    let destination: SocketAddr = destination.parse().unwrap();
    let remote = RemoteSocket::new(socket.try_clone().unwrap(), destination).expect("a socket");
    let connecting = remote.begin(entrance, destination.ip().to_canonical());
    (socket, connecting.unwrap())
}
