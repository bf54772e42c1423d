//! The keys of the clients of a server.
//!
//! | file | what it has |
//! |---|---|
//! | [`key_file`] | reads files with the keys of clients |
//! | [`client_keys`] | the table of the clients' keys, which follows the changes of its file |

pub(in crate::cli) mod client_keys;
pub(in crate::cli) mod key_file;

/// Parses the key file of a server. What it says of each client is what a client reads from that line.
#[cfg(fuzzing)]
pub(crate) fn fuzz_client_keys(data: &[u8]) {
    let Ok(clients) = key_file::parse(data) else {
        return;
    };
    for client in clients {
        assert!(key_file::check_name(client.name.as_bytes()).is_ok());
        let line = [client.name.as_bytes(), b" ", client.key].concat();
        assert_eq!(key_file::key_of_client_line(&line).ok(), Some(client.key));
    }
}
