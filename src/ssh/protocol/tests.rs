use proptest::prelude::*;

use super::*;

fn edge(id: u32, direction: EdgeDirection) -> EdgeOrder {
    EdgeOrder {
        id: EdgeId(id),
        direction,
        peer: format!("peer {id}"),
        key: format!("key {id}"),
        listens: id % 2 == 0,
    }
}

fn order(edges: Vec<EdgeOrder>, work: Payload) -> ToAgent {
    ToAgent::Order(Box::new(Order {
        name: "stage 2 (fs2)".to_owned(),
        work: Work::Stage(work),
        edges,
        stream: StreamOrder {
            chunk_bytes: Some(1 << 20),
            ports: Some((7000, 7010)),
            ..StreamOrder::over(TransportOrder::Auto)
        },
    }))
}

/// Returns a payload of exactly so many bytes: a list, whose encoding begins with its length in three bytes.
fn payload_of(bytes: usize) -> Result<Payload, PayloadError> {
    Payload::encode(&vec![7_u8; bytes - 3])
}

fn direction() -> impl Strategy<Value = EdgeDirection> {
    prop_oneof![
        Just(EdgeDirection::Send),
        Just(EdgeDirection::Receive),
        Just(EdgeDirection::Both),
    ]
}

#[test]
fn an_order_can_have_any_number_of_edges() {
    for count in [0, 1, 2, 5, 100] {
        let directions = [
            EdgeDirection::Both,
            EdgeDirection::Send,
            EdgeDirection::Receive,
        ];
        let edges = (0..count).zip(directions.into_iter().cycle());
        let edges = edges.map(|(id, direction)| edge(id, direction)).collect();
        let order = order(edges, payload_of(MAX_PAYLOAD_BYTES).unwrap());
        let bytes = encode(&order).unwrap();
        assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{count} edges");
        assert_eq!(decode(&bytes), Ok(order));
    }
}

#[test]
fn an_applications_message_that_is_too_long_cannot_be_encoded() {
    assert!(payload_of(MAX_PAYLOAD_BYTES).is_ok());
    let bytes = MAX_PAYLOAD_BYTES + 1;
    let error = payload_of(bytes).unwrap_err();
    assert_eq!(error, PayloadError::TooLong { bytes });
    assert_eq!(
        error.to_string(),
        "an application's message has 262145 bytes, more than the limit of 262144"
    );
}

#[test]
fn an_applications_message_that_is_too_long_cannot_be_decoded() {
    // The frames of a peer that exceeds the limit: one for each variant with a payload.
    let bytes = MAX_PAYLOAD_BYTES + 1;
    let long = vec![7_u8; bytes];
    let frames = [
        postcard::to_stdvec(&(4_u8, &long)).unwrap(),
        postcard::to_stdvec(&(6_u8, None::<u8>, Some(&long))).unwrap(),
    ];
    for frame in frames {
        let error = decode::<FromAgent>(&frame).unwrap_err();
        assert_eq!(error, PayloadError::TooLong { bytes }.into());
    }
    let frame = postcard::to_stdvec(&(4_u8, &long)).unwrap();
    let error = decode::<ToAgent>(&frame).unwrap_err();
    assert_eq!(error, PayloadError::TooLong { bytes }.into());
}

#[test]
fn a_message_with_bytes_after_it_is_refused() {
    let mut bytes = encode(&ToAgent::Go).unwrap();
    bytes.push(0);
    assert!(matches!(
        decode::<ToAgent>(&bytes),
        Err(MessageError::Malformed(_))
    ));
    let payload = Payload::encode(&(1_u8, 2_u8)).unwrap();
    assert!(matches!(
        payload.decode::<u8>(),
        Err(PayloadError::Malformed(_))
    ));
}

#[test]
fn keys_are_not_printed() {
    let text = format!("{:?}", edge(3, EdgeDirection::Both));
    assert!(
        text.contains("EdgeId(3)") && !text.contains("key 3"),
        "{text}"
    );
}

proptest! {
    #[test]
    fn every_order_arrives_as_it_was_sent(
        edges in prop::collection::vec((any::<u32>(), direction()), 0..6),
        work: Vec<u8>,
    ) {
        let edges = edges.into_iter().map(|(id, direction)| edge(id, direction)).collect();
        let order = order(edges, Payload::encode(&work).unwrap());
        prop_assert_eq!(decode(&encode(&order).unwrap()), Ok(order));
    }

    #[test]
    fn every_applications_message_arrives_as_it_was_sent(text: String, edge: u32, port: u16) {
        let payload = Payload::encode(&text).unwrap();
        let message = FromAgent::Application(payload.clone());
        prop_assert_eq!(decode(&encode(&message).unwrap()), Ok(message));
        prop_assert_eq!(payload.decode::<String>(), Ok(text));
        let message = FromAgent::Listening { edge: EdgeId(edge), port };
        prop_assert_eq!(decode(&encode(&message).unwrap()), Ok(message));
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
        let _ = decode::<ToAgent>(&bytes);
        let _ = decode::<FromAgent>(&bytes);
    }
}
