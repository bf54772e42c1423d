//! The agent: two processes on each host, a worker that carries out one order and a guard above it.
//!
//! `rdpipe --agent` is the *guard* ([`process::guard`]). It starts the *worker*, waits until the worker has
//! exited or died, and kills every process that the worker left behind. The worker exchanges messages with the
//! controller over stdin and stdout ([`control`]), connects the order's edges ([`edge`]), runs the application
//! that the order is for ([`job`]), and reports. [`stage`] is the application of rdpipe and rdcat; the others come from
//! the layers above ([`job::Applications`]).
//!
//! The worker has one main thread for all control, and one thread for each edge, which moves the bytes of
//! the edge. So a relay uses two processors, and a disk that stalls delays only its own edge.

pub(crate) mod acceptance;
mod addresses;
mod cause;
mod connected_edge;
mod control;
mod edge;
mod edges;
#[cfg(fuzzing)]
pub(in crate::ssh) mod fuzzing;
pub(crate) mod job;
mod meter;
mod order_run;
mod process;
pub(crate) mod served;
mod stage;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use addresses::{hello, machine};
pub(crate) use process::guard::main as guard_main;
pub(crate) use stage::path::resolve;
pub(crate) use worker::main as worker_main;
