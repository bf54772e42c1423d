//! Copies of rdcp: trees with everything nasty between hosts, every option, deaths and cuts at random moments, and
//! attacks.

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
mod times;
pub(crate) mod trees;
mod tuning;
mod ways;
