//! Copies of rdcp: trees with everything nasty between hosts, every option, deaths and cuts at random moments, and attacks.
#![cfg(feature = "cli")]

mod changes;
mod compare;
mod cuts;
mod deaths;
mod destinations;
mod directories;
mod existing;
mod filters;
mod full_disk;
mod hostile;
mod in_place;
mod listings;
mod merging;
mod metadata;
mod moments;
mod pipes;
mod random;
mod resume;
mod statuses;
#[path = "../support/mod.rs"]
mod support;
mod times;
mod trees;
mod tuning;
mod ways;
