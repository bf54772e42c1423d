//! What is wrong with hosts and pairs of hosts, how to repair it, and what limits them. Pure, no I/O.
//!
//! | file | what it judges |
//! |---|---|
//! | `finding` | what a finding is |
//! | [`host`] | the facts of one host |
//! | [`pair_facts`] | what is known about two hosts |
//! | [`pair`] | two hosts: versions, clocks, TCP |
//! | `path` | the sizes of packets that arrive |
//! | `ports` | the proofs of pairs of RDMA ports |
//! | [`choice`] | what `auto` chooses for two hosts, and why |
//! | [`rates`] | measured rates and counters: slow pairs, lost packets |
//! | `limit` | what limits a transfer |
//! | `remedies`, `amounts` | commands and amounts for the user |

pub(crate) mod amounts;
mod choice;
mod finding;
mod host;
mod limit;
mod pair;
mod pair_facts;
mod path;
mod ports;
mod rates;
mod remedies;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    choice::automatic_choice,
    finding::{Finding, Severity},
    host::check_host,
    limit::{TransferRates, limit},
    pair::check_pair,
    pair_facts::{PairEnd, PairFacts},
    rates::{PairRate, lossy, slow_pairs},
};
