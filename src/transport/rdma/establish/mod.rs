//! From two ends' ports to a queue pair that a frame has crossed.
//!
//! | file | what it has |
//! |---|---|
//! | [`local_ports`] | this end's ports and pool; tries the proposed pairs one after the other |
//! | [`attempt`] | one pair: opens, connects and proves a queue pair, in steps with the peer |
//! | [`turns`] | of a crowd of accepted streams, a few are proved at a time |
//! | [`established`] | the result: a link that a message has crossed |
//!
//! ```text
//! dialer                                    acceptor
//!   Hello {offer}               ───────────►
//!                               ◄───────────   Welcome {proposal}: the best pairs, sequence numbers
//!   Step: endpoint, slots, lane ◄──────────►   Step: endpoint, slots, lane
//!   Step: connected             ◄──────────►   Step: connected
//!                 one frame each way that bytes will travel
//!   Step: it arrived            ◄──────────►   Step: it arrived
//! ```
//!
//! Either end may send, in place of a step, the reason why it cannot continue. Then both ends try the next pair that was
//! proposed, from its first step. After the last pair both use TCP, or both fail.
//!
//! # The proof
//!
//! A queue pair connects without sending a packet, so a connected queue pair proves nothing about VLANs, firewalls or
//! switches. Before either end trusts it, one frame of one byte crosses it in each direction that will carry data. Its
//! receive is posted before either end has said `connected`. All pairs together have one limit of time, shared evenly:
//! a user who falls back to TCP would notice more.
//!
//! Two rules keep a busy host from looking like a broken network. The limit counts the time in which the process runs:
//! a step that ends late counts as one, and after a pause of half the limit it begins again. And an acceptor proves a
//! few streams at a time, each for a limited time before the next may begin.

mod attempt;
mod established;
mod local_ports;
mod turns;

pub(crate) use established::Established;
pub(crate) use local_ports::LocalPorts;
