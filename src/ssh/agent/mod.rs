//! The agent: one process on each host that carries out one order, and one that guards it.
//!
//! `rdpipe --agent` is the *guard* ([`process::guard`]): it starts the *worker*, waits for it, and kills
//! whatever the worker left behind, however the worker died. The worker speaks with the controller over
//! stdin and stdout ([`control`]), connects the order's edges ([`edge`]), runs the application that the
//! order is for ([`job`]; [`stage`] is the only one so far), and reports.
//!
//! Threads of the worker: the main one runs everything that controls, and one more for each edge moves
//! its bytes. So a relay uses two processors, and a disk that stalls delays nothing else.

mod addresses;
mod cause;
mod connected_edge;
mod control;
mod edge;
mod job;
mod meter;
mod process;
mod stage;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use addresses::machine;
pub(crate) use process::guard::main as guard_main;
pub(crate) use worker::main as worker_main;
