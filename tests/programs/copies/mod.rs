//! Copies of rdcp: trees with everything nasty between hosts, every option, deaths and cuts at random moments, and
//! attacks.

mod changes;
mod compare;
mod deaths;
mod destinations;
mod existing;
mod in_place;
mod listings;
mod metadata;
mod options;
mod random;
mod resume;
pub(crate) mod trees;
mod ways;
