//! The agent: one process on each host that runs one stage, and one that guards it.
//!
//! `rdpipe --agent` is the *guard*: it starts the *worker*, waits for it, and kills whatever the worker
//! left behind, however that died. The worker speaks with the controller over stdin and stdout
//! (`control.rs`), opens the stage's edges (`edge.rs`), runs it (`stage/`), and reports.
//!
//! Threads of the worker: the main one runs everything that controls, and one more for each edge
//! moves its bytes, so that a relay uses two processors and a disk that stalls delays nobody else.

mod addresses;
mod cause;
mod control;
mod descendants;
mod edge;
mod guard;
mod hold;
mod job;
mod joint;
mod meter;
mod reaper;
mod stage;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use addresses::machine;
pub(crate) use guard::main as guard_main;
pub(crate) use worker::main as worker_main;
