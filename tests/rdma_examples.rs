//! The examples as processes, over RDMA, on a machine with an RDMA device.
#![cfg(all(feature = "cli", feature = "rdma"))]

mod support;

use crate::support::programs::{examples::Over, machine};

const RDMA: Over = Over("rdma");

#[test]
fn stdin_is_copied_to_stdout() {
    let Some(_machine) = machine() else { return };
    RDMA.a_file_is_copied(["receive_stdout", "0"], ["send_stdin", ""]);
}

#[test]
fn a_killed_sender_is_no_end_of_file() {
    let Some(_machine) = machine() else { return };
    RDMA.a_killed_sender_is_no_end();
}

#[test]
fn many_clients_get_their_echo() {
    let Some(_machine) = machine() else { return };
    // Few clients: each client pins two pools, which is slow on an emulated processor.
    RDMA.many_clients_are_echoed(4, 25);
}

#[test]
fn messages_go_there_and_back() {
    let Some(_machine) = machine() else { return };
    for small_frames in ["0", "32"] {
        RDMA.messages_go_there_and_back(small_frames);
    }
}

#[test]
fn frames_are_answered() {
    let Some(_machine) = machine() else { return };
    RDMA.frames_are_answered();
}

#[test]
fn connections_go_through_a_forwarded_port() {
    let Some(_machine) = machine() else { return };
    RDMA.connections_go_through_a_tunnel();
}

#[test]
fn a_broken_forwarding_is_no_end_of_file() {
    let Some(_machine) = machine() else { return };
    RDMA.a_broken_tunnel_is_no_end();
}

#[test]
fn a_file_is_copied_over_rdma_only() {
    let Some(_machine) = machine() else { return };
    RDMA.a_file_is_copied(["rdma_copy", "receive 0"], ["rdma_copy", "send"]);
}
