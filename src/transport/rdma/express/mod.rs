//! The express lane: a queue pair for small frames beside that of async-rdma. docs/architecture.md describes it ("The express
//! lane").
//!
//! | file | what it has |
//! |---|---|
//! | [`header`] | the header of a small frame |
//! | [`window`] | how many small frames may be under way, and what has been consumed |
//! | [`ring`] | the registered memory for the frames of both directions |
//! | [`heap_slots`] | memory for frames that have arrived |
//! | [`spin`] | whether a wait begins with polling |
//! | [`wakeup`] | how long this machine takes to wake a thread |
//! | [`wakers`] | the tasks that wait for the lane |
//! | [`queue`] | the queue pair: sends frames, takes those that arrive |
//! | [`lane`] | the queue for both sides of the data path, and the wait for its events |
//! | [`setup`] | the lane while it is being set up |

pub(super) mod header;
mod heap_slots;
pub(super) mod lane;
mod queue;
pub(super) mod ring;
pub(super) mod setup;
mod spin;
#[cfg(test)]
mod tests;
mod wakers;
mod wakeup;
mod window;
