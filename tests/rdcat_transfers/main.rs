//! Transfers of rdcat: files of other hosts, and two ends that a ticket joins.
#![cfg(feature = "cli")]

mod files;
#[path = "../support/mod.rs"]
mod support;
mod tickets;
