//! The agent: two processes on each host, a worker that carries out one order and a guard above it.
//!
//! `rdpipe --agent` is the *guard* ([`process::guard`]). It starts the *worker*, waits until the worker has
//! exited or died, and kills every process that the worker left behind. The worker exchanges messages with the
//! controller over stdin and stdout ([`control`]), connects the order's edges ([`edges`]), runs the application
//! that the order is for ([`job`]), and reports. [`stage`] is the application of rdpipe and rdcat; the others come from
//! the layers above ([`job::Applications`]).
//!
//! The worker has one main thread for all control, and one thread for each edge, which moves the bytes of
//! the edge. So a relay uses two processors, and a disk that stalls delays only its own edge.
//!
//! | file | what it has |
//! |---|---|
//! | `worker` | a worker: carries out one order of the controller, from the greeting to the report |
//! | `served` | the same for one client of a server |
//! | `order_run` | one order, from its edges to its report |
//! | `control` | the session with the controller: greeting, order, messages both ways, keepalive |
//! | `edges` | connects the edges of an order, each on a thread of its own |
//! | `addresses` | the name, the addresses and the identity of this host |
//! | `connected_edge` | one end of a connected edge: moves the bytes of its stage |
//! | `job` | the interface of an application of the agent |
//! | `stage` | the application of rdpipe and rdcat |
//! | `cause` | the first failure of an order, shared by all tasks that work on it |
//! | `process` | the guard, and the processes below the worker: killing and reaping |

mod addresses;
mod cause;
mod connected_edge;
mod control;
pub(crate) mod edges;
#[cfg(fuzzing)]
pub(in crate::ssh) mod fuzzing;
pub(crate) mod job;
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
