//! The parts of a server that accepts copies from many clients.
//!
//! | file | what it has |
//! |---|---|
//! | [`args`] | the options of a server |
//! | [`server`] | the server: accepts clients, keeps its tables, and ends |
//! | [`client`] | one client, from its session to the end of its copy |
//! | [`served_copies`] | what the clients may do |
//! | [`memory`] | how the memory is divided between copies |
//! | [`figures`] | what the server counts and reports |
//!
//! - *Keys.* The client's key opens the session, and the order inside the session brings fresh keys for the edges, as
//!   over ssh. The listener expects these keys until the edges are connected. A stranger reaches neither.
//! - *One port, one direction.* Every edge of such a copy is fixed: the server listens, and never dials, so no client
//!   can make it connect to an address.
//! - *One process, not one for each client*: the listener and its edges stay in one place, a client costs threads and
//!   no processes, and pinned memory has one limit. So a server may run as an ordinary user. The price is that a bug in
//!   one copy could reach the others.
//! - *Confinement.* All paths of an order are resolved below the root by openat2(2) with `RESOLVE_BENEATH`, and
//!   everything else relative to directories that were opened so. On a kernel without openat2 the server does not
//!   start. A link in place of a file that the client named is not followed. A served destination keeps no set-user-ID
//!   and set-group-ID bits, no devices and no attributes of the namespaces `security` and `trusted`: a server that runs
//!   as root would lend its rights.
//! - *Memory* is divided, not shared out on demand, so no client waits in the middle of a copy for the memory of
//!   another one. Copies beyond `--max-clients` wait before they begin.
//! - *The same destination.* A copy claims each of its top entries while it runs. The second copy is refused that
//!   entry.

pub(super) mod args;
mod client;
mod figures;
mod memory;
mod served_copies;
pub(super) mod server;

use crate::cli::{
    keys::key_file::new_client_line,
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
