//! Code that the programs share: runs, messages, exit codes, progress, reports and the hiding of secrets.

pub(crate) mod line_budgets;
pub(crate) mod live;
pub(crate) mod message;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod secret;
pub(crate) mod signals;
pub(crate) mod stderr;
pub(crate) mod supervision;
pub(crate) mod table;
pub(crate) mod ticket;
