//! The source of a copy: walks the files and sends them.
//!
//! ```text
//! walker ─ jobs ─────────────────────────────► work board ─► lane senders ─► lanes
//!    └──── jobs whose entries are asked for ─► questions ──────┘ ▲
//!                                               └► control       └─ ranges of large files
//! ```
//!
//! | module | holds | runs on |
//! |---|---|---|
//! | [`engine`] | preparation, the run, its end | the caller's runtime |
//! | [`walk`] | operands, directories, filters: finds entries and packs them into jobs | a thread of its own |
//! | [`questions`] | what is asked and answered over the control stream | the thread of the control stream |
//! | [`work_board`] | the bounded queue of jobs, and large files that several lanes send | shared |
//! | [`lane`], [`large_file`] | read files straight into registered buffers | the threads of the lanes |
//! | [`shared`] | what the threads share: the rate of all lanes, [`tally`], [`removal`], the board | shared |
//! | [`attributes`] | facts about entries, and the table of files with several names | any |
//!
//! Memory does not depend on the number of files: every queue is bounded. The walker keeps the paths of directories
//! that it has not read yet, and the table of hard links keeps files with a name that was not seen yet.

mod attributes;
mod engine;
mod lane;
mod large_file;
mod questions;
mod removal;
mod shared;
mod tally;
#[cfg(test)]
mod tests;
mod walk;
mod work_board;

pub(crate) use engine::SourceEngine;
