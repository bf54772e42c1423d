//! rdperf between hosts: what is measured and found, reports, tickets, files, and what ends it.

pub(crate) mod checks;
mod deaths;
mod files;
mod pairs;
mod reports;
mod tickets;
mod wrong_use;

use crate::support::programs::{Setup, program};

/// The options of a run that takes no longer than it must.
const QUICK: [&str; 6] = ["--time", "0.1", "--runs", "1", "--transport", "tcp"];

/// Returns the options of a quick run, followed by these arguments.
fn quick<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&QUICK, arguments].concat()
}

/// Returns rdperf with these arguments.
fn rdperf(arguments: &[&str]) -> Setup {
    program(env!("CARGO_BIN_EXE_rdperf"), "rdperf").args(arguments)
}
