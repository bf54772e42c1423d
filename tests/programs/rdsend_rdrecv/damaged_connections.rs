//! A network that cuts a connection, flips a bit, or drops everything: both ends fail and report the cause.

use std::time::Duration;

use crate::support::programs::{
    Act, Connection, End, Place, Plan, Random, Towards, before, patience, random_bytes, receiver,
    sender,
};

/// Returns the time after which a silent peer counts as dead, for a test that waits for it.
fn short_timeout() -> Duration {
    patience(Duration::from_millis(400))
}

/// Returns the same time for a test whose ends notice another failure before. It is long enough that a busy machine
/// does not silence an end, and short enough that the keepalives reach the byte at which the proxy acts in a few
/// seconds.
fn long_timeout() -> Duration {
    patience(Duration::from_secs(1))
}

/// Runs an endless transfer through a proxy that damages it. Returns the ends of the sender and the receiver.
fn harmed(plan: Plan, timeout: Duration) -> [End; 2] {
    let place = Place::new();
    let timeout = timeout.as_secs_f64();
    let receiver = receiver(format!("--timeout {timeout} -o {}", place.old())).start();
    let proxy = before(&receiver, plan);
    // Small chunks make for many control messages.
    let options = format!("--timeout {timeout} --chunk 4K -i /dev/zero");
    let sender = sender(proxy.port(), options).start();
    let ends = [sender.end(), receiver.end()];
    assert!(proxy.has_acted(), "{plan:?}\n{ends:#?}");
    println!(
        "{plan:?}\n  {}  {}",
        ends[0].stderr,
        ends[1].stderr.lines().last().unwrap_or("")
    );
    place.assert_untouched(&[]);
    ends
}

/// All connections and directions in which bytes pass. The data connection carries no bytes towards the sender.
const EVERYWHERE: [(Connection, Towards); 3] = [
    (Connection::Data, Towards::Acceptor),
    (Connection::Control, Towards::Acceptor),
    (Connection::Control, Towards::Dialer),
];

/// Returns a random byte of a direction that comes after the handshake, and that the transfer is sure to reach.
fn somewhere(random: &mut Random, (connection, towards): (Connection, Towards)) -> u64 {
    match (connection, towards) {
        (Connection::Data, Towards::Acceptor) => 100 + random.within(0..3_000_000),
        // Only keepalives pass here, a few a second.
        (Connection::Control, Towards::Acceptor) => 360 + random.within(0..60),
        (Connection::Control, Towards::Dialer) => 1000 + random.within(0..3000),
        (Connection::Data, Towards::Dialer) => unreachable!("nothing ever passes there"),
    }
}

#[test]
fn a_cut_connection_fails_both_ends() {
    let mut random = Random::new(1);
    for place @ (connection, towards) in EVERYWHERE {
        let plan = Plan {
            connection,
            towards,
            at: somewhere(&mut random, place),
            act: Act::Cut,
        };
        let [sender, receiver] = harmed(plan, long_timeout());
        let cause = match connection {
            Connection::Data => "the data connection broke",
            Connection::Control => "the other end died",
        };
        for end in [sender, receiver] {
            // The end that detects the failure first reports it to the other, which then exits with 3.
            let code = if end.stderr.contains(" gave up at byte ") {
                3
            } else {
                255
            };
            end.fails(code, &[" at byte ", cause]);
        }
    }
}

#[test]
fn a_flipped_bit_fails_both_ends() {
    let mut random = Random::new(2);
    for place @ (connection, towards) in EVERYWHERE {
        for _ in 0..3 {
            let at = somewhere(&mut random, place);
            let [sender, receiver] = harmed(
                Plan {
                    connection,
                    towards,
                    at,
                    act: Act::Flip(4),
                },
                long_timeout(),
            );
            for end in [sender, receiver] {
                let code = if end.stderr.contains(" gave up at byte ") {
                    3
                } else {
                    255
                };
                end.fails(
                    code,
                    &[" at byte ", "the bytes were damaged or changed on the way"],
                );
            }
        }
    }
}

#[test]
fn an_unplugged_cable_fails_both_ends() {
    let (connection, towards) = (Connection::Data, Towards::Acceptor);
    let plan = Plan {
        connection,
        towards,
        at: 1_000_000,
        act: Act::SilenceAll,
    };
    let timeout = short_timeout();
    let silence = format!("received nothing from the other end for {timeout:.1?}");
    for end in harmed(plan, timeout) {
        end.fails(255, &[" failed at byte ", &silence]);
    }
}

#[test]
fn a_broken_handshake_is_retried() {
    let place = Place::new();
    let data = random_bytes(1_000_000);
    place.file("in", &data);
    for towards in [Towards::Acceptor, Towards::Dialer] {
        let receiver = receiver("-o").arg(place.path("out")).start();
        let plan = Plan {
            connection: Connection::Control,
            towards,
            at: 20,
            act: Act::Cut,
        };
        let proxy = before(&receiver, plan);
        let sender = sender(proxy.port(), "").arg(place.path("in")).start();
        sender.end().exits(0);
        receiver.end().exits(0);
        assert!(proxy.has_acted() && place.read("out") == data);
    }
}

#[test]
fn a_damaged_handshake_leaves_the_receiver_listening() {
    let place = Place::new();
    let receiver = receiver(format!("-o {}", place.old())).start();
    let (connection, towards) = (Connection::Control, Towards::Acceptor);
    let plan = Plan {
        connection,
        towards,
        at: 20,
        act: Act::Flip(4),
    };
    let proxy = before(&receiver, plan);
    let damaged = sender(proxy.port(), "-i /dev/zero").start();
    damaged.end().fails(255, &["the keys do not match"]);
    place.assert_untouched(&[]);
    sender(receiver.port(), "").start().end().exits(0);
    receiver.end().exits(0);
}
