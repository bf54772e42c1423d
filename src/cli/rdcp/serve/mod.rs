//! The parts of a server that accepts copies from many clients.
//!
//! | file | what it has |
//! |---|---|
//! | [`args`] | the options of a server |
//! | [`server`] | the server: accepts clients, keeps its tables, and ends |
//! | [`client`] | one client, from its session to the end of its copy |
//! | [`served_copies`] | what the clients may do |
//! | [`kills`] | the sessions that can be ended |
//! | [`memory`] | how the memory is divided between copies |
//! | [`tally`] | what the copies have moved and done so far |
//! | [`key_lines`] | the format of the key file: parses its lines, and makes the line of a new client |
//! | [`key_file`] | reads files with the keys of clients |
//! | [`client_keys`] | the table of the clients' keys, which follows the changes of its file |
//! | [`rates`] | the bytes per second over the last 10 s, 1 min and 5 min |
//! | [`server_totals`] | what the server has done since its start, and its line for the log |
//! | [`metrics`] | the file of metrics for Prometheus |

pub(super) mod args;
mod client;
mod client_keys;
pub(super) mod key_file;
mod key_lines;
mod kills;
mod memory;
mod metrics;
mod rates;
mod served_copies;
pub(super) mod server;
mod server_totals;
mod tally;

use std::io::{self, Write};

use self::key_lines::new_client_line;
use crate::cli::shared::{
    exit::Exit,
    message::{Console, sentence},
};

/// Parses the key file of a server. What it says of each client is what a client reads from that line.
#[cfg(fuzzing)]
pub(in crate::cli) fn fuzz_client_keys(data: &[u8]) {
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
        Err(error) => Exit::from(&error),
    }
}
