//! Turns of the accepted streams, whose queue pairs are proved a few at a time.

use std::{future::Future, pin::pin, time::Duration};

use tokio::{sync::Semaphore, time::timeout};

/// The most streams of this process that are accepted over RDMA and proved at once. All queue pairs of a crowd would share
/// the processors, and each would take longer than its time limit: with 120 clients on an emulated processor, 33 of them
/// found that nothing crossed. A dialer's time limit begins when the acceptor has begun, so only acceptors take turns.
const AT_ONCE: usize = 16;

/// The time after which the next stream may begin in any case, since a peer can stop in the middle of a step.
const TURN: Duration = Duration::from_secs(2);

static TURNS: Turns = Turns::new(AT_ONCE, TURN);

/// A number of turns, each for a time at most.
struct Turns {
    free: Semaphore,
    longest: Duration,
}

impl Turns {
    const fn new(at_once: usize, longest: Duration) -> Self {
        Self {
            free: Semaphore::const_new(at_once),
            longest,
        }
    }

    async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let turn = self.free.acquire().await;
        let mut work = pin!(work);
        if let Ok(done) = timeout(self.longest, &mut work).await {
            return done;
        }
        drop(turn);
        work.await
    }
}

/// Runs `work` when it has a turn.
pub(super) async fn in_turn<T>(work: impl Future<Output = T>) -> T {
    TURNS.run(work).await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::future::{join, join_all, select};
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_stopped_peer_keeps_its_turn_for_a_while_only() {
        let turns = Turns::new(2, Duration::from_millis(1));
        let stopped = join_all((0..7).map(|_| turns.run(pending::<()>())));
        select(pin!(stopped), pin!(turns.run(ready(())))).await;
    }

    #[tokio::test]
    async fn no_more_than_a_few_work_at_once() {
        let turns = Turns::new(2, Duration::from_secs(3600));
        let working = || turns.run(async { turns.free.available_permits() });
        let (first, second) = join(working(), working()).await;
        assert_eq!((first, second), (1, 1));
        let crowd = join_all((0..100).map(|_| turns.run(yield_now())));
        let most = async {
            yield_now().await;
            turns.free.available_permits()
        };
        assert_eq!(join(crowd, most).await.1, 0);
    }
}
