//! Servers of programs that measure.

use super::Service;

/// Returns the server of iperf3, which serves one client at a time, and refuses others. Its output has a line
/// [`ready_for_test`] when it is ready for the next one.
pub fn iperf(address: &str) -> Service {
    Service {
        name: "iperf3",
        port: 5201,
        script: format!("exec iperf3 --server --bind {address} --port 5201 --forceflush\n"),
        ready: "(test #1)",
        stop: "TERM",
        is_root: false,
    }
}

/// Returns the words by which the server of iperf3 says that it is ready for the client with this number, from 1.
pub fn ready_for_test(number: usize) -> String {
    format!("(test #{number})")
}
