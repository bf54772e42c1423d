//! Where a host is found, and the way to a listener of which several addresses are known: for the edges of
//! pipelines and for rdcat's tickets.

mod addresses;
mod dial;
mod listen;
mod probes;
pub(crate) mod ticket;

pub(crate) use addresses::addresses;
pub(crate) use dial::{FailedAddress, Unreached, dial, is_final};
pub(crate) use listen::listen;
