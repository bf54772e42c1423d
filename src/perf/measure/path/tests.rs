//! Both ends of a path within this process.

use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

use super::{ProbePacket, *};

fn localhost(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Probes the path between two addresses of this host.
async fn probe(
    dialer: &str,
    listener: &str,
) -> (Result<TaskResult, String>, Result<TaskResult, String>) {
    let (dialer, listener) = (localhost(dialer), localhost(listener));
    let (mut ours, mut theirs) = duplex(100);
    tokio::join!(
        probe_path(TaskEnd::Dialer, listener, dialer, &mut ours),
        probe_path(TaskEnd::Listener, dialer, listener, &mut theirs),
    )
}

fn path(result: Result<TaskResult, String>) -> PathResult {
    match result {
        Ok(TaskResult::Path(path)) => path,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_packet_arrives_on_this_host() {
    let (dialed, served) = probe("127.0.0.1", "127.0.0.2").await;
    assert_eq!(served, Ok(TaskResult::Served));
    let dialed = path(dialed);
    let sizes = &dialed.probes;
    assert!(sizes.iter().any(|probe| probe.bytes == 1500));
    assert!(sizes.iter().all(|probe| probe.arrived > 0), "{sizes:?}");
    // Only the first address is one of the interface.
    assert!(dialed.mtu.is_some_and(|mtu| mtu >= 1500));
    assert!(dialed.netdev.is_some());
}

#[tokio::test]
async fn ipv6_has_larger_headers() {
    if tokio::net::UdpSocket::bind("[::1]:0").await.is_err() {
        println!("SKIPPED: no IPv6");
        return;
    }
    let dialed = path(probe("::1", "::1").await.0);
    assert!(
        dialed.probes.iter().all(|probe| probe.arrived > 0),
        "{dialed:?}"
    );
}

#[tokio::test]
async fn a_mapped_address_is_an_ipv4_address() {
    let dialed = path(probe("::ffff:127.0.0.1", "::ffff:127.0.0.1").await.0);
    assert!(
        dialed.probes.iter().all(|probe| probe.arrived > 0),
        "{dialed:?}"
    );
}

#[tokio::test]
async fn packets_that_are_dropped_are_a_result() {
    // The listener expects packets from another address, and drops those that arrive.
    let (mut ours, mut theirs) = duplex(100);
    let (dialed, served) = tokio::join!(
        probe_path(
            TaskEnd::Dialer,
            localhost("127.0.0.1"),
            localhost("127.0.0.1"),
            &mut ours
        ),
        probe_path(
            TaskEnd::Listener,
            localhost("127.0.0.9"),
            localhost("127.0.0.1"),
            &mut theirs
        ),
    );
    assert_eq!(served, Ok(TaskResult::Served));
    let dialed = path(dialed);
    assert!(
        dialed
            .probes
            .iter()
            .all(|probe| probe.arrived == 0 && probe.sent > 0)
    );
}

#[tokio::test]
async fn an_address_of_another_host_is_an_error() {
    let (mut control, _peer) = duplex(100);
    let (peer, local) = (localhost("127.0.0.1"), localhost("192.0.2.1"));
    let result = probe_path(TaskEnd::Dialer, peer, local, &mut control).await;
    let error = result.unwrap_err();
    assert!(
        error.starts_with("cannot open a UDP socket on 192.0.2.1"),
        "{error}"
    );
}

/// Returns the error of an end whose peer sends `bytes` and ends.
async fn after(end: TaskEnd, bytes: &[u8]) -> String {
    let (mut ours, mut theirs): (DuplexStream, DuplexStream) = duplex(100);
    theirs.write_all(bytes).await.unwrap();
    theirs.shutdown().await.unwrap();
    let address = localhost("127.0.0.1");
    let result = probe_path(end, address, address, &mut ours).await;
    result.unwrap_err()
}

#[tokio::test]
async fn a_peer_that_ends_or_sends_nonsense_is_an_error() {
    for end in [TaskEnd::Dialer, TaskEnd::Listener] {
        let error = after(end, &[]).await;
        assert!(error.starts_with("cannot receive counts"), "{error}");
        let error = after(end, &[255; 8]).await;
        assert!(error.contains("no count of packets"), "{error}");
        let error = after(end, &[2, 0, 0, 0, 255, 255]).await;
        assert!(error.contains("no count of packets"), "{error}");
    }
    let many = SentSizes {
        round: 0,
        sizes: vec![(1, 1); MAX_SIZES + 1],
    };
    let bytes = postcard::to_stdvec(&many).unwrap();
    let mut frame = u32::try_from(bytes.len()).unwrap().to_le_bytes().to_vec();
    frame.extend(bytes);
    let (mut ours, mut theirs) = duplex(1000);
    theirs.write_all(&frame).await.unwrap();
    let address = localhost("127.0.0.1");
    let result = probe_path(TaskEnd::Listener, address, address, &mut ours).await;
    assert!(result.unwrap_err().contains("more sizes"));
}

#[test]
fn a_packet_has_its_size_and_says_what_it_is() {
    let packet = ProbePacket {
        token: 7,
        round: 3,
        index: 2,
    };
    for bytes in [0, 13, 1472] {
        let payload = packet.encode(bytes);
        assert_eq!(payload.len(), bytes.max(13));
        assert_eq!(ProbePacket::decode(&payload), Some(packet));
    }
    assert_eq!(ProbePacket::decode(&[0; 12]), None);
    assert_eq!(ProbePacket::decode(&[]), None);
}
