//! `rdcp --serve`: copies of clients without ssh, who may do what, crowds of clients, and how both sides end.
#![cfg(feature = "cli")]

mod conflicts;
mod copies;
mod crowds;
mod ends;
mod served;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
#[path = "../copies/trees.rs"]
#[allow(dead_code, reason = "the tests of copies use all of it")]
mod trees;
