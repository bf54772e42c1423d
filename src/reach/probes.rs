//! Opens TCP connections to several addresses at once, and reports which of them answer.

use std::{io, time::Duration};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{net::TcpStream, time::timeout};

use crate::threads;

/// The time limit for an answer from one address. TCP repeats a lost SYN after one second.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// The time that an address that answered waits for a better one to answer. Hosts of a LAN answer sooner.
const BETTER_LIMIT: Duration = Duration::from_millis(20);

type Answer = (usize, io::Result<()>);

/// The probes of all addresses of a peer. The addresses are ordered: a lower index is a better address.
pub(super) struct Probes<'a> {
    addresses: &'a [String],
    running: FuturesUnordered<futures::future::BoxFuture<'a, Answer>>,
    /// The indices of the addresses that answered and have not been returned.
    answered: Vec<usize>,
}

impl<'a> Probes<'a> {
    /// Starts to connect to `port` at all `addresses`.
    pub(super) fn start(addresses: &'a [String], port: u16) -> Self {
        let probe = |(rank, address): (usize, &'a String)| {
            async move {
                let connecting = async {
                    let addresses = threads::lookup_host(address, port).await?;
                    TcpStream::connect(&*addresses).await
                };
                let answer = timeout(PROBE_LIMIT, connecting).await;
                let answer = answer.unwrap_or_else(|_| Err(no_answer()));
                (rank, answer.map(drop))
            }
            .boxed()
        };
        Self {
            addresses,
            running: addresses.iter().enumerate().map(probe).collect(),
            answered: Vec::new(),
        }
    }

    /// Returns the next address and the result of its probe, or `None` after the last one.
    ///
    /// A failed probe is returned at once. An address that answered is returned when every better one has been
    /// returned, or [`BETTER_LIMIT`] has passed without an answer from another one.
    pub(super) async fn next(&mut self) -> Option<(String, io::Result<()>)> {
        loop {
            let best = self.answered.iter().copied().min();
            let answer = match best {
                // No address is better than the first.
                Some(0) => None,
                Some(_) => timeout(BETTER_LIMIT, self.running.next())
                    .await
                    .unwrap_or(None),
                None => Some(self.running.next().await?),
            };
            match (answer, best) {
                (Some((rank, Ok(()))), _) => self.answered.push(rank),
                (Some((rank, Err(error))), _) => {
                    return Some((self.addresses[rank].clone(), Err(error)));
                }
                (None, Some(best)) => {
                    self.answered.retain(|rank| *rank != best);
                    return Some((self.addresses[best].clone(), Ok(())));
                }
                (None, None) => return None,
            }
        }
    }
}

fn no_answer() -> io::Error {
    let text = format!("no answer within {PROBE_LIMIT:.0?}");
    io::Error::new(io::ErrorKind::TimedOut, text)
}
