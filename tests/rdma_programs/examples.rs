//! The examples as processes, over RDMA.

use std::{
    env,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::support::programs::examples::Over;
use crate::support::programs::lacks_rdma;

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
fn an_http_body_is_streamed() {
    let Some(_machine) = machine() else { return };
    // The whole gibibyte takes minutes on an emulated processor.
    let full = env::var("RDPIPE_FULL").is_ok_and(|full| full == "1");
    RDMA.a_body_is_streamed(if full { 1 << 30 } else { 128 << 20 });
}

#[cfg(feature = "axum")]
#[test]
fn a_body_of_axum_is_streamed() {
    let Some(_machine) = machine() else { return };
    RDMA.a_body_of_axum_is_streamed(16 << 20);
}

#[cfg(feature = "tonic")]
#[test]
fn messages_of_grpc_are_echoed() {
    let Some(_machine) = machine() else { return };
    RDMA.messages_of_grpc_are_echoed(10);
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
fn a_file_is_sent_through_tls() {
    let Some(_machine) = machine() else { return };
    RDMA.a_file_goes_through_tls();
}

#[test]
fn another_certificate_is_not_trusted() {
    let Some(_machine) = machine() else { return };
    RDMA.another_certificate_is_not_trusted();
}

#[test]
fn a_file_is_copied_over_rdma_only() {
    let Some(_machine) = machine() else { return };
    RDMA.a_file_is_copied(["rdma_copy", "receive 0"], ["rdma_copy", "send"]);
}

/// Returns a lock on the machine, or `None` if it has no RDMA. The lock makes the tests run one at a time, because two
/// programs at once are enough for an emulated machine.
pub(super) fn machine() -> Option<MutexGuard<'static, ()>> {
    static MACHINE: Mutex<()> = Mutex::new(());
    (!lacks_rdma()).then(|| MACHINE.lock().unwrap_or_else(PoisonError::into_inner))
}
