//! rdsend and rdrecv as processes: the bytes, the failures and the messages.

mod damaged_connections;
mod deaths;
mod files;
// These tests need programs that stop themselves at named points of the protocol.
mod messages;
mod random_faults;
mod secrets;
mod usage;
