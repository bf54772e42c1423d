//! What is wrong with hosts and pairs of hosts, how to repair it, and what limits them. Pure, no I/O.
//!
//! | file | what it judges |
//! |---|---|
//! | `finding` | what a finding is |
//! | [`host`] | the facts of one host |
//! | [`pair`] | two hosts: versions, clocks, TCP |
//! | [`rates`] | measured rates and counters: slow pairs, lost packets |
//! | `amounts` | commands and amounts for the user |

pub(crate) mod amounts;
mod finding;
mod host;
mod pair;
mod rates;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    finding::{Finding, Severity},
    host::check_host,
    pair::{PairEnd, PairFacts, automatic_choice, check_pair},
    rates::{PairRate, TransferRates, limit, lossy, slow_pairs},
};
