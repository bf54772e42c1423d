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
//! | [`keys`] | the keys of the clients |
//! | [`figures`] | what the server counts and reports |

mod allocator;
pub(super) mod args;
mod client;
mod figures;
pub(super) mod keys;
mod kills;
mod memory;
mod outcome;
mod served_copies;
pub(super) mod server;
mod shared;

use std::io::{self, Write};

use self::keys::key_lines::new_client_line;
use crate::cli::shared::{
    exit::Exit,
    message::{Console, sentence},
    stdout::unwritten,
};

/// Parses the key file of a server. What it says of each client is what a client reads from that line.
#[cfg(fuzzing)]
pub(crate) fn fuzz_client_keys(data: &[u8]) {
    use self::keys::key_lines;
    let Ok(clients) = key_lines::parse(data) else {
        return;
    };
    for client in clients {
        assert!(key_lines::check_name(client.name.as_bytes()).is_ok());
        let line = [client.name.as_bytes(), b" ", client.key].concat();
        assert_eq!(key_lines::key_of_client_line(&line).ok(), Some(client.key));
    }
}

/// Prints a line with a new key for the key file of a server. Returns how the program ends.
pub(super) fn new_key(name: &str, console: &Console) -> Exit {
    let line = match new_client_line(name) {
        Ok(line) => line,
        Err(error) => {
            console.error(&sentence(&error.into()));
            return Exit::Usage;
        }
    };
    let mut stdout = io::stdout();
    let written = stdout.write_all(line.as_bytes());
    match written.and_then(|()| stdout.write_all(b"\n")) {
        Ok(()) => Exit::Ok,
        Err(error) => unwritten(&error, console),
    }
}
