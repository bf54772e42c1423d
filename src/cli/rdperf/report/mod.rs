//! What a run has found, for people and for programs.
//!
//! | file | what it has |
//! |---|---|
//! | `outcome` | what a run has found, and how it is printed |
//! | `table` | the report as tables for people |
//! | `verdict` | the last line of every run: what limits these hosts |
//! | `sweep_verdict` | which curve of a sweep is the best one, and where that changes |
//! | `page` | the report as one HTML page |

pub(super) mod outcome;
pub(super) mod page;
mod sweep_verdict;
pub(super) mod table;
pub(super) mod verdict;
