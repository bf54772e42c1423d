//! What the programs share: arguments, messages, exit codes and progress. Not part of the API.

pub mod args;
pub mod exit;
pub mod message;
pub mod progress;
pub mod report;
pub mod secret;
