//! The parts of a server that accepts copies from many clients.
//!
//! | file | what it has |
//! |---|---|
//! | [`allocator`] | the allocator gives large blocks back to the system |
//! | [`args`] | the options of a server |
//! | [`server`] | the server: accepts clients, keeps its tables, and ends |
//! | [`client`] | one client, from its session to the end of its copy |
//! | [`served_copies`] | what the clients may do |
//! | [`kills`] | the sessions that can be ended |
//! | [`memory`] | how the memory is divided between copies |
//! | [`outcome`] | how the session of a client ended |
//! | [`shared`] | what the sessions share |
//! | [`figures`] | what the server counts and reports |

mod allocator;
pub(super) mod args;
mod client;
mod figures;
mod kills;
mod memory;
mod outcome;
mod served_copies;
pub(super) mod server;
mod shared;

use crate::cli::{
    keys::key_lines::new_client_line,
    shared::{
        exit::Exit,
        message::{Console, sentence},
        stdout::print,
    },
};

/// Prints a line with a new key for the key file of a server. Returns how the program ends.
pub(super) fn new_key(name: &str, console: &Console) -> Exit {
    let line = match new_client_line(name) {
        Ok(line) => line,
        Err(error) => {
            console.error(&sentence(&error.into()));
            return Exit::Usage;
        }
    };
    let printed = print(&line, console).and_then(|()| print("\n", console));
    printed.err().unwrap_or_default()
}
