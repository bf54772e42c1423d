//! What programs do through a tunnel: each body runs a server on one host and its clients on another, and checks every
//! byte that they move, and that nothing fails.

mod databases;
mod files;
mod rig;
mod speed;
mod ways;
mod web;

pub(crate) use databases::{postgres, redis};
pub(crate) use files::{git, rsync};
pub(crate) use rig::Rig;
pub(crate) use speed::iperf;
pub(crate) use ways::Way;
pub(crate) use web::{a_thousand_connections, curl, nginx};
