//! The parts of a server that accepts copies from many clients.
//!
//! | file | what it has |
//! |---|---|
//! | [`key_lines`] | the format of the key file: parses its lines, and makes the line of a new client |
//! | [`key_file`] | reads files with the keys of clients |
//! | [`client_keys`] | the table of the clients' keys, which follows the changes of its file |
//! | [`rates`] | the bytes per second over the last 10 s, 1 min and 5 min |
//! | [`server_totals`] | what the server has done since its start, and its line for the log |
//! | [`metrics`] | the file of metrics for Prometheus |

pub(super) mod client_keys;
pub(super) mod key_file;
pub(super) mod key_lines;
pub(super) mod metrics;
pub(super) mod rates;
pub(super) mod server_totals;
