//! The examples as processes, over TCP.

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
fn a_socket_of_systemd_is_taken() {
    TCP.a_socket_of_systemd_is_taken();
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

/// The examples of verbs need a device, and say so before they connect.
#[cfg(feature = "rdma")]
#[test]
fn a_device_that_is_not_there_is_one_sentence() {
    for name in ["verbs_send_recv", "verbs_write_read"] {
        for (arguments, words) in [
            ("listen 0 device=no_such", "there is no RDMA device no_such"),
            (
                "127.0.0.1 1 device=no_such",
                "there is no RDMA device no_such",
            ),
            ("listen 0 loud", "loud is not one of inline, unsignalled"),
            ("listen seven", "seven is not the number of a port"),
            ("listen 0 messages=all", "all is not a number"),
            ("listen", "usage: "),
        ] {
            let end = TCP.example(name, arguments).start().end();
            end.fails(1, &[name, words]);
        }
    }
}
