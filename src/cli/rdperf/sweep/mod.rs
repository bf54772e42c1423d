//! Sweeps: the same measurement over many sizes, with different settings of RDMA. Pure, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`spec`] | the text of `--sweep` |
//! | [`points`] | what is measured, and what these devices leave out |

mod points;
mod spec;

pub(super) use self::{points::planned, spec::Sweep};
