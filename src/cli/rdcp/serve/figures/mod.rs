//! What the server counts and reports.
//!
//! | file | what it has |
//! |---|---|
//! | [`rates`] | the bytes per second over the last 10 s, 1 min and 5 min |
//! | [`server_totals`] | what the server has done since its start, in words |
//! | [`metrics`] | the file of metrics for Prometheus |

pub(super) mod metrics;
pub(super) mod rates;
pub(super) mod server_totals;
