//! The addresses of this host, and how to listen on them and connect to a peer that has several. Used for the
//! edges of pipelines and for rdcat's tickets.
//!
//! | file | what it has |
//! |---|---|
//! | `listen` | opens a listener on a range of ports |
//! | `dial` | connects to a peer that has several addresses |
//! | `ticket` | the addresses, port and key of a listener in one word |

mod dial;
mod listen;
pub(crate) mod ticket;

pub(crate) use self::listen::{addresses, ticket_addresses, usable};
pub(crate) use dial::{FailedAddress, Unreached, dial, first_answering, is_final};
pub(crate) use listen::listen;
