//! The keys of the clients.
//!
//! | file | what it has |
//! |---|---|
//! | [`key_lines`] | the format of the key file: parses its lines, and makes the line of a new client |
//! | [`key_file`] | reads files with the keys of clients |
//! | [`client_keys`] | the table of the clients' keys, which follows the changes of its file |

pub(super) mod client_keys;
pub(in crate::cli::rdcp) mod key_file;
pub(super) mod key_lines;
