//! Debian's own servers and clients, unmodified, through rdforward between two hosts over TCP.
//!
//! These tests run with `scripts/test --full`, which installs the programs. The bodies are in `programs`, and
//! `tests/guests/forward.rs` runs them over RDMA. Settings:
//!
//! - `RDPIPE_STAND_IN=ssh` runs the same programs through `ssh -L` and `ssh -D`, and directly in place of `rdforward
//!   run`: it shows whether the programs themselves work on this machine.
//! - `RDPIPE_PROGRAM_SECONDS=60` is the time of each program that runs for a time, as pgbench does.
//! - `RDPIPE_PROGRAM_CLIENTS=50` is the number of clients of a database.

mod programs;

use programs::{Rig, Way};

/// Makes a test of each body for a way, in a module of that name.
macro_rules! through {
    ($module:ident, $way:expr, $($body:ident),+) => {
        mod $module {
            $(
                #[test]
                fn $body() {
                    if let Some(rig) = super::Rig::of_namespaces() {
                        super::programs::$body(&rig, $way);
                    }
                }
            )+
        }
    };
}

through!(
    a_listener,
    super::Way::Listener,
    postgres,
    redis,
    nginx,
    a_thousand_connections,
    iperf,
    rsync,
    git
);
through!(
    run,
    super::Way::Run,
    postgres,
    redis,
    nginx,
    a_thousand_connections,
    iperf,
    rsync,
    git
);
through!(socks, super::Way::Socks, curl);
