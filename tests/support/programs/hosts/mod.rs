//! Real hosts for the tests of rdpipe: network namespaces with an sshd each, made by `scripts/hosts`.
//!
//! The hosts are h1, h2, ... at 10.77.0.1, 10.77.0.2, ...; only the ssh configuration of the controller has these
//! names. The controller runs on ctl. Every process and file of the hosts is gone after the test, even if the test is
//! killed.

mod network;
mod outcome;
mod processes;
mod terminal;

pub use network::{GONE, Network, SSH};
pub use outcome::Outcome;
pub use processes::Process;
pub use terminal::Terminal;

/// Returns `bytes` bytes of text in which no two lines are alike.
pub fn text(bytes: usize) -> Vec<u8> {
    let lines = (0_u64..).map(|number| format!("{number:x} of many lines to tell apart\n"));
    let mut text: Vec<u8> = lines
        .take(bytes / 20 + 1)
        .flat_map(String::into_bytes)
        .collect();
    text.truncate(bytes);
    text
}
