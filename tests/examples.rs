//! The examples as processes, over TCP.
#![cfg(feature = "cli")]

mod support;

use crate::support::programs::examples::Over;

const TCP: Over = Over("tcp");

#[test]
fn stdin_is_copied_to_stdout() {
    TCP.a_file_is_copied(["receive_stdout", "0"], ["send_stdin", ""]);
}

#[test]
fn a_killed_sender_is_no_end_of_file() {
    TCP.a_killed_sender_is_no_end();
}

#[test]
fn many_clients_get_their_echo() {
    TCP.many_clients_are_echoed(8, 100);
}

#[test]
fn an_http_body_is_streamed() {
    TCP.a_body_is_streamed(1 << 30);
}

#[test]
fn a_socket_of_systemd_is_taken() {
    TCP.a_socket_of_systemd_is_taken();
}

#[cfg(feature = "axum")]
#[test]
fn a_body_of_axum_is_streamed() {
    TCP.a_body_of_axum_is_streamed(256 << 20);
}

#[cfg(feature = "tonic")]
#[test]
fn messages_of_grpc_are_echoed() {
    TCP.messages_of_grpc_are_echoed(100);
}

#[test]
fn frames_are_answered() {
    TCP.frames_are_answered();
}

#[test]
fn messages_go_there_and_back() {
    TCP.messages_go_there_and_back("0");
}

#[test]
fn connections_go_through_a_forwarded_port() {
    TCP.connections_go_through_a_tunnel();
}

#[test]
fn a_broken_forwarding_is_no_end_of_file() {
    TCP.a_broken_tunnel_is_no_end();
}

#[test]
fn a_file_is_sent_through_tls() {
    TCP.a_file_goes_through_tls();
}

#[test]
fn another_certificate_is_not_trusted() {
    TCP.another_certificate_is_not_trusted();
}
