//! The source against a destination that keeps what it receives.

mod confined;
mod destination;
mod runs;
mod trees;
