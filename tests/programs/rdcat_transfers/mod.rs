//! Transfers of rdcat: files of other hosts, and two ends that a ticket joins.

mod files;
mod tickets;
