//! A client that has a key of `rdforward serve` and means harm: what the server holds of it is bounded, goes with it,
//! and keeps no other client out.

use rdpipe::{
    Key,
    hostile::{HostileClient, HostileTarget, TargetKind},
};

use super::{
    connect, echo, exchange, port, rdforward,
    without_ssh::{address, key_file},
};
use crate::{
    serving::hostile::assert_nothing_left,
    support::programs::{Held, Place, eventually, peak_kib},
};

/// The most that the server may have resident: 64 MiB for each of the tunnels of the hostile client, of which it has
/// eight at a time, and 64 MiB.
const MOST_KIB: u64 = (8 * 64 + 64) << 10;

#[test]
fn a_hostile_client_of_a_server_takes_bounded_memory_and_leaves_nothing_behind() {
    let place = Place::new();
    let (alice, mallory) = ("secret-of-alice-3847", "secret-of-mallory-99");
    let both = format!("alice {alice}\nmallory {mallory}\n");
    let keys = key_file(&place, "keys", &both);
    let alice = key_file(&place, "alice", &format!("alice {alice}\n"));
    let allowed = echo();
    let server = rdforward(&["serve", "--listen-port", "0", "--transport", "tcp"])
        .args(["--allow", &allowed.to_string(), "--key-file", &keys])
        .start();
    let at = address(&server);
    let target = HostileTarget {
        address: at.parse().unwrap(),
        key: Key::parse(mallory).unwrap(),
        kind: TargetKind::Tunnels(allowed),
    };
    let near = rdforward(&[
        "--key-file",
        &alice,
        "-L",
        &format!("0:localhost:{allowed}"),
        &at,
    ])
    .start();
    let local = port(&near, "here");
    let bytes = vec![7; 1 << 20];
    assert_eq!(exchange(connect(local), &bytes), bytes);
    let before = Held::by(&server);
    for seed in 0..3 {
        let hostile = HostileClient::start(target.clone(), seed).unwrap();
        eventually("harm that was begun", || {
            (hostile.deeds().messages.get() > 5000).then_some(())
        });
        for _ in 0..10 {
            assert_eq!(exchange(connect(local), &bytes), bytes);
        }
        println!("seed {seed}: {:?}", hostile.deeds());
        drop(hostile);
        assert_nothing_left(&server, None, before);
        let peak = peak_kib(&server);
        println!("seed {seed}: at most {} MiB", peak >> 10);
        assert!(peak < MOST_KIB, "{peak} KiB");
    }
}
