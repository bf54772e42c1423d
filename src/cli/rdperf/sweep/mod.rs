//! Sweeps: the same measurement over many sizes, with different settings of RDMA. Pure, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`spec`] | what `--sweep` asks for |
//! | [`presets`] | the sweeps that have names |
//! | [`values`] | the values of a setting: a list, or a range |
//! | [`points`] | what is measured, and what these devices leave out |

mod points;
mod presets;
mod spec;
mod values;

pub(super) use self::{points::planned, spec::Sweep};
