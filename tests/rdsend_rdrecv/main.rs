//! rdsend and rdrecv as processes: every byte, every failure, and what they say.
#![cfg(feature = "cli")]

mod costs;
mod damaged_connections;
mod deaths;
// Its processes stop themselves at named points of the protocol.
#[cfg(feature = "fault-injection")]
mod deaths_at_points;
mod inputs_and_outputs;
mod messages;
mod output_files;
mod secrets;
mod signals;
#[path = "../support/mod.rs"]
mod support;
mod usage;
