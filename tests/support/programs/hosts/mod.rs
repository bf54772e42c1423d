//! Real hosts for the tests of rdpipe: network namespaces with an sshd each, made by `scripts/hosts`.
//!
//! They are named h1, h2, ... by an ssh configuration that only the controller has, at 10.77.0.1, 10.77.0.2, ...; the
//! controller runs on ctl. Nothing of them outlives its test, even where that is killed.

mod network;
mod outcome;
mod processes;
mod terminal;

pub use network::{Network, SSH};
pub use outcome::Outcome;
pub use processes::Process;
pub use terminal::Terminal;

/// Lines of text, more of them than any pipe or slot holds, and none like another.
pub fn text(bytes: usize) -> Vec<u8> {
    let lines = (0_u64..).map(|number| format!("{number:x} of many lines to tell apart\n"));
    let mut text: Vec<u8> = lines
        .take(bytes / 20 + 1)
        .flat_map(String::into_bytes)
        .collect();
    text.truncate(bytes);
    text
}
