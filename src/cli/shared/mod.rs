//! What the programs share beside their arguments: runs, messages, exit codes, progress, reports.

pub mod exit;
pub mod message;
pub(crate) mod pipeline;
pub mod progress;
pub mod report;
pub(crate) mod run;
pub mod secret;
pub(crate) mod signals;
