//! Sweeps: the same measurement over many sizes, with different settings of RDMA. Pure, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`choice`] | the values that a sweep measures |
//! | [`spec`] | the text of `--sweep` |
//! | [`presets`] | the sweeps that have names |
//! | [`values`] | the values of a setting: a list, or a range |
//! | [`points`] | what is measured, and what these devices leave out |

mod choice;
mod points;
mod presets;
mod spec;
mod values;

pub(super) use self::{choice::Sweep, points::planned};
