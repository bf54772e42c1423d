//! The addresses of this host, and how to listen on them and connect to a peer that has several. Used for the
//! edges of pipelines and for rdcat's tickets.

mod addresses;
mod dial;
mod listen;
mod probes;
pub(crate) mod ticket;

pub(crate) use addresses::{addresses, ticket_addresses, usable};
pub(crate) use dial::{FailedAddress, Unreached, dial, first_answering, is_final};
pub(crate) use listen::listen;
