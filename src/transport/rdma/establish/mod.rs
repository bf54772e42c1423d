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

mod attempt;
mod established;
mod local_ports;
mod turns;

pub(crate) use established::Established;
pub(crate) use local_ports::LocalPorts;
