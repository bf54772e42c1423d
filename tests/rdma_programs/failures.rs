//! Failures of the source, the sink and the control connection of a stream over RDMA.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::support::programs::{
    Act, Connection, Place, Plan, Proxy, Towards, generous, lacks_rdma, patience, random_bytes,
    receiver, sender, soon,
};

#[test]
fn a_full_output_device_fails_both_ends() {
    if lacks_rdma() {
        return;
    }
    let place = Place::new();
    place.file("in", &random_bytes(17 << 20));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let receiver = receiver("--transport rdma").stdout(full).start();
    let sender = sender(receiver.port(), "--transport rdma").arg(place.path("in"));
    let cause = "cannot write stdout at byte 0: No space left on device";
    let words = ["127.0.0.1 gave up at byte ", cause];
    sender.start().end().fails(3, &words);
    receiver.end().fails(1, &[cause]);
}

#[test]
fn an_unreadable_input_fails_both_ends() {
    if lacks_rdma() {
        return;
    }
    let place = Place::new();
    let receiver = receiver(format!("--transport rdma -o {}", place.old())).start();
    let sender = sender(receiver.port(), "--transport rdma");
    let sender = sender.stdin(File::open(place.directory()).unwrap()).start();
    let cause = "cannot read standard input at byte 0: Is a directory";
    sender.end().fails(1, &[cause]);
    receiver.end().fails(3, &[" gave up at byte 0: ", cause]);
    place.assert_untouched(&[]);
}

#[test]
fn a_cut_control_connection_fails_both_ends() {
    if lacks_rdma() {
        return;
    }
    for towards in [Towards::Acceptor, Towards::Dialer] {
        let place = Place::new();
        let receiver = receiver(format!("--transport rdma -o {}", place.old())).start();
        let proxy = Proxy::start(([127, 0, 0, 1], receiver.port()).into(), None);
        let timeout = patience(Duration::from_secs(4)).as_secs_f64();
        let options = format!("--transport rdma --timeout {timeout} --chunk 16K --depth 4");
        let mut sender = sender(proxy.port(), options).stdin(Stdio::piped()).start();
        let mut input = sender.stdin();
        let piece = random_bytes(64 << 10);
        // This is more than both pools hold, so the handshake is over after these writes.
        for _ in 0..8 {
            input.write_all(&piece).expect("nothing is cut yet");
        }
        proxy.plan_from_here(Plan {
            connection: Connection::Control,
            towards,
            // A few messages later: keepalives to the acceptor, credits to the dialer.
            at: 100,
            act: Act::Cut,
        });
        let began = Instant::now();
        // The write fails when the sender has ended.
        while input.write_all(&piece).is_ok() {
            assert!(began.elapsed() < generous(), "it goes on and on");
        }
        let gone = Instant::now();
        let has_acted = proxy.has_acted();
        let (sender, receiver) = (sender.end(), receiver.end());
        assert!(has_acted, "{towards:?}: {sender:?}, {receiver:?}");
        let late = receiver.at.saturating_duration_since(gone);
        assert!(late < soon(), "{late:?}");
        sender.fails(
            255,
            &["sending to 127.0.0.1 failed at byte ", "the other end died"],
        );
        receiver.fails(255, &["receiving from ", "the other end died"]);
        place.assert_untouched(&[]);
    }
}
