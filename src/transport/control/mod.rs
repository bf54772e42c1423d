//! The control connection of a stream: its messages under Noise, the task that carries them, and the
//! stream's state.

pub(crate) mod codec;
mod connection;
pub(crate) mod message;
pub(crate) mod noise;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod terms;
