//! The entry points of the fuzz targets for what other hosts send over ssh. They are compiled only for fuzzing, and no
//! other module uses them.
//!
//! | file | what is fuzzed |
//! |---|---|
//! | `messages` | one message, in either direction |
//! | `session` | the greeting and the frames of a session, as they arrive at the controller |
//! | `pipeline` | the decisions of the controller, when the agents send any messages |
//!
//! Those of the agent are in `agent/fuzzing.rs`.

mod messages;
mod pipeline;
mod session;

pub use messages::agent_messages;
pub use pipeline::pipeline;
pub use session::session;

pub use super::agent::fuzzing::{controller, proc_stat};
