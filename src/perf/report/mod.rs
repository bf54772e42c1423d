//! The report of a run. Pure, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`measurand`] | what is measured, and the task that measures it |
//! | [`operations`] | operations of RDMA with all of their settings: a point of a sweep |
//! | [`sample`] | what one run of a measurement has shown |
//! | [`series`] | the runs of one measurement: median and spread |
//! | [`host_summary`] | a host |
//! | [`document`] | the whole report, as JSON and as CSV |

pub(crate) mod document;
pub(crate) mod host_summary;
pub(crate) mod measurand;
pub(crate) mod operations;
pub(crate) mod sample;
pub(crate) mod series;
