//! The greeting and the order at the beginning of a session.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::ssh::{
    agent::{hello, open},
    protocol::{AgentHello, greeting},
};

/// Opens a session with a controller that writes `bytes`, and nothing after them. Returns the error.
async fn refused(bytes: &[u8]) -> String {
    let (mut controller, agent) = tokio::io::duplex(4096);
    controller.write_all(bytes).await.unwrap();
    failed(agent).await
}

/// Opens a session with the controller at the other end, which fails. Returns the error.
async fn failed(agent: tokio::io::DuplexStream) -> String {
    let (input, output) = tokio::io::split(agent);
    let hello = AgentHello {
        host: "h".to_owned(),
        machine: "m".to_owned(),
        addresses: Vec::new(),
        streams: 1,
        most_streams: None,
    };
    let opened = open(input, output, hello, Duration::from_millis(50), None).await;
    opened
        .err()
        .map_or_else(String::new, |error| error.to_string())
}

#[tokio::test]
async fn input_that_is_held_back_after_the_greeting_is_named_as_the_likely_cause() {
    let greeting = greeting("controller");
    let silent = refused(greeting.as_bytes()).await;
    assert!(silent.contains("holds back its input"), "{silent}");
    // The length of a message, whose rest is held back.
    let begun = refused(&[greeting.as_bytes(), &[0, 0, 1, 0, 7]].concat()).await;
    assert!(begun.contains("holds back its input"), "{begun}");
    let nothing = refused(b"").await;
    assert!(nothing.starts_with("received nothing from"), "{nothing}");
}

#[tokio::test]
async fn a_controller_that_ended_before_the_greeting_is_gone() {
    let (controller, agent) = tokio::io::duplex(4096);
    drop(controller);
    assert_eq!(failed(agent).await, "the controller is gone");
}

#[test]
fn a_host_has_a_name_and_an_identity_that_stays_the_same() {
    let first = hello();
    assert_eq!(first.machine, hello().machine);
    assert!(first.machine.contains("net:["), "{}", first.machine);
    assert!(!first.host.is_empty());
}
