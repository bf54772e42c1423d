//! Finds what is to be copied, and packs it into jobs for the lanes.

pub(super) mod directory;
pub(super) mod outlet;
pub(super) mod walker;
