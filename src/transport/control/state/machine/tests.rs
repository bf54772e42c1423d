//! Tests of the states of a stream, and of the messages that move them.

use proptest::prelude::*;

use super::*;

/// The number of slots of the peer's pool.
const DEPTH: u32 = 64;

fn machine() -> StreamMachine {
    let mut machine = StreamMachine::new(Direction::Both, 2);
    machine.credits.set_pool(DEPTH as usize);
    machine
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        Just(Message::Ping {
            sent: 1,
            received: 2
        }),
        (0..DEPTH).prop_map(|slot| Message::Credit(vec![slot])),
        Just(Message::Fin {
            bytes: 3,
            digest: 4
        }),
        Just(Message::FinAck),
        Just(Message::Confirm),
        Just(Message::Stop { offset: 5 }),
        Just(Message::Bye),
    ]
}

proptest! {
    /// A peer sends any messages in any order. A direction never ends with success before its real end, and the
    /// peer never leaves in the middle of a stream without a failure.
    #[test]
    fn no_order_of_messages_makes_a_false_end(messages in proptest::collection::vec(message(), 0..12)) {
        let mut machine = machine();
        for message in messages {
            if machine.receive(message).is_err() {
                return Ok(());
            }
            prop_assert!(!matches!(machine.sending, Sending::Acked | Sending::Confirmed));
            prop_assert!(!matches!(machine.receiving, Receiving::Complete | Receiving::AtEnd));
            prop_assert!(!machine.peer_left || machine.done());
        }
    }
}

proptest! {
    /// A peer grants any slots, while this end takes some of them. The credits that wait never outnumber the slots of the
    /// peer, and no credit is for a slot that waits already.
    #[test]
    fn credits_never_outnumber_the_slots_of_the_peer(grants in proptest::collection::vec((proptest::collection::vec(0..DEPTH + 8, 0..40), 0..40_usize), 0..40)) {
        let mut machine = machine();
        for (slots, taken) in grants {
            let accepted = machine.receive(Message::Credit(slots.clone())).is_ok();
            prop_assert!(!accepted || slots.iter().all(|slot| *slot < DEPTH));
            let mut waiting: Vec<u32> = machine.credits.waiting().collect();
            prop_assert!(waiting.len() <= DEPTH as usize);
            waiting.sort_unstable();
            waiting.dedup();
            prop_assert_eq!(waiting.len(), machine.credits.waiting().count());
            for _ in 0..taken {
                machine.credits.take();
            }
        }
    }
}

#[test]
fn a_slot_that_the_peer_does_not_have_cannot_be_granted() {
    for slot in [DEPTH, u32::MAX] {
        let credit = Message::Credit(vec![0, slot]);
        assert!(machine().receive(credit).is_err(), "{slot}");
    }
    machine().receive(Message::Credit(vec![DEPTH - 1])).unwrap();
}

#[test]
fn a_slot_is_granted_once_until_it_is_written() {
    let mut machine = machine();
    assert!(machine.receive(Message::Credit(vec![3, 3])).is_err());
    assert!(machine.receive(Message::Credit(vec![3])).is_err());
    assert_eq!(machine.credits.take(), Some(3));
    machine.receive(Message::Credit(vec![3])).unwrap();
}

#[cfg(feature = "rdma")]
#[test]
fn a_new_pool_of_the_peer_may_have_another_depth() {
    let mut machine = machine();
    machine.receive(Message::Credit(vec![0, 1, 2])).unwrap();
    machine.credits.pause();
    // The rest of the credits for the old pool, and then those for the new one.
    machine.receive(Message::Credit(vec![DEPTH - 1])).unwrap();
    machine.credits.pause();
    machine.credits.set_pool(2);
    assert!(machine.receive(Message::Credit(vec![2])).is_err());
    machine.receive(Message::Credit(vec![0, 1])).unwrap();
    assert_eq!(machine.credits.take(), None, "paused");
    machine.credits.resume();
    assert_eq!(machine.credits.take(), Some(0));
}

#[test]
fn an_acknowledgement_needs_a_fin() {
    assert!(machine().receive(Message::FinAck).is_err());
    assert!(machine().receive(Message::Confirm).is_err());
    let mut sent = machine();
    sent.sending = Sending::Fin;
    assert!(
        sent.receive(Message::Confirm).is_err(),
        "not acknowledged yet"
    );
    sent.receive(Message::FinAck).unwrap();
    sent.receive(Message::Confirm).unwrap();
    assert_eq!(sent.sending, Sending::Confirmed);
}

#[test]
fn only_one_fin() {
    let mut machine = machine();
    let fin = Message::Fin {
        bytes: 1,
        digest: 2,
    };
    machine.receive(fin.clone()).unwrap();
    assert!(machine.receive(fin).is_err());
}

#[test]
fn the_first_failure_is_the_cause() {
    let mut machine = machine();
    let reason = "disk full".to_owned();
    machine
        .receive(Message::Abort { offset: 7, reason })
        .unwrap();
    machine.fail(Failure::Fault(Fault::Protocol("what followed from it")));
    let error = machine.send_error("hostB").unwrap();
    assert_eq!(error.to_string(), "hostB gave up at byte 7: disk full");
    assert!(machine.outbox.is_empty(), "the peer knows");
}

#[test]
fn a_fault_found_here_is_told() {
    let mut machine = machine();
    machine.fail(Failure::Fault(Fault::Corrupt("a chunk")));
    assert!(matches!(machine.outbox[..], [Message::Abort { .. }]));
    assert!(machine.interrupted);
}

#[test]
fn a_lost_peer_after_the_acknowledgement_is_unconfirmed() {
    let mut machine = machine();
    machine.sending = Sending::Acked;
    machine.fail(Failure::Fault(Fault::Protocol("x")));
    assert!(matches!(
        machine.send_error("b"),
        Some(Error::Unconfirmed { .. })
    ));
}
