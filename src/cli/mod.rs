//! What the programs share: arguments, messages, exit codes and progress. Not part of the API.

pub mod args;
pub mod exit;
pub mod message;
mod output;
mod pipeline;
pub mod progress;
pub mod rdcat;
pub mod rdpipe;
pub mod rdrecv;
pub mod rdsend;
pub mod report;
mod run;
pub mod secret;
mod signals;
mod table;
