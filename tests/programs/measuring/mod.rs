//! rdperf between hosts: what is measured and found, reports, tickets, files, and what ends it.

mod checks;
mod comparisons;
mod deaths;
mod faults;
mod files;
mod matrices;
mod pairs;
mod pictures;
mod pingpong;
mod reports;
mod tickets;
mod wrong_use;

/// The options of a run that takes no longer than it must.
const QUICK: [&str; 6] = ["--time", "0.1", "--runs", "1", "--transport", "tcp"];

/// Returns the options of a quick run, followed by these arguments.
fn quick<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&QUICK, arguments].concat()
}
