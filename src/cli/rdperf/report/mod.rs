//! What a run has found, for people and for programs.

pub(super) mod outcome;
pub(super) mod page;
mod sweep_table;
mod sweep_verdict;
pub(super) mod table;
pub(super) mod text_table;
pub(super) mod verdict;
