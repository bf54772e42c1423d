//! What is promised of two rdcats that a ticket joins.

mod bytes;
mod ends;
mod refused;
mod secrets;
