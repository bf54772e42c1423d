//! TCP connections to several addresses at once, to see which of them answer.

use std::{io, time::Duration};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{net::TcpStream, time::timeout};

/// How long an address may take to answer. A SYN that was lost is sent again after one second.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// How long an address that answered waits for a better one: a LAN answers within it.
const BETTER_LIMIT: Duration = Duration::from_millis(20);

type Answer = (usize, io::Result<()>);

/// Some of them have answered, others have not.
pub(super) struct Probes<'a> {
    addresses: &'a [String],
    running: FuturesUnordered<futures::future::BoxFuture<'a, Answer>>,
    /// Those that answered, and have not been returned.
    answered: Vec<usize>,
}

impl<'a> Probes<'a> {
    /// Connects to all of them, the best first.
    pub(super) fn start(addresses: &'a [String], port: u16) -> Self {
        let probe = |(rank, address): (usize, &'a String)| {
            async move {
                let connecting = TcpStream::connect((address.as_str(), port));
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

    /// The next address, with what it said: of those that have answered, the first in the list; what
    /// failed, at once.
    pub(super) async fn next(&mut self) -> Option<(String, io::Result<()>)> {
        loop {
            let best = self.answered.iter().copied().min();
            let answer = match best {
                // The first of all has nothing better to wait for.
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
