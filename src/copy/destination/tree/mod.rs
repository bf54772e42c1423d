//! The directories of a copy: opened below the place that receives it, made, mirrored, and completed at the end.

pub(super) mod beneath;
pub(super) mod deletion;
pub(super) mod folders;
pub(super) mod links;
pub(super) mod mirror;
