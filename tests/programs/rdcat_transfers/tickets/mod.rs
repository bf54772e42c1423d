//! The promises of two rdcat processes that are joined by a ticket.

mod bytes;
mod ends;
mod refused;
mod secrets;
