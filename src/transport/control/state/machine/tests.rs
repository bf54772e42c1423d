//! Tests of the states of a stream, and of the messages that move them.

use proptest::prelude::*;

use super::*;

fn machine() -> StreamMachine {
    StreamMachine::new(Direction::Both, 2)
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        Just(Message::Ping {
            sent: 1,
            received: 2
        }),
        Just(Message::Credit(vec![1, 2])),
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
