//! rdsend and rdrecv as processes: the bytes, the failures and the messages.

mod costs;
mod damaged_connections;
mod deaths;
// These tests need programs that stop themselves at named points of the protocol.
#[cfg(feature = "fault-injection")]
mod deaths_at_points;
mod inputs_and_outputs;
mod messages;
mod output_files;
mod random_faults;
mod secrets;
mod signals;
mod unread_stderr;
mod usage;
