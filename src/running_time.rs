//! A time limit that counts only the time in which this process runs.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

/// The number of steps in which the time is counted.
const STEPS: u32 = 8;

/// Runs `work` until it ends or this process has run for `limit`. Then the result is `None`.
///
/// The time is counted in steps. A step that ends late counts as one: on a busy machine the work is late for the same
/// reason. If it is late by half of `limit`, this process or its machine was stopped or suspended. What another process
/// was to answer was then not sent, so the whole of `limit` begins again.
pub(crate) async fn within_running_time<T>(
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let mut steps = 0;
    while steps < STEPS {
        let began = Instant::now();
        if let Ok(done) = timeout(limit / STEPS, work.as_mut()).await {
            return Some(done);
        }
        let has_run = began.elapsed() < limit / STEPS + limit / 2;
        steps = if has_run { steps + 1 } else { 0 };
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{future::pending, thread::sleep};

    use super::*;

    #[tokio::test]
    async fn work_ends_at_the_limit() {
        let began = Instant::now();
        let limit = Duration::from_millis(80);
        assert_eq!(within_running_time(limit, pending::<()>()).await, None);
        assert!(began.elapsed() >= limit);
        assert_eq!(within_running_time(limit, async { 7 }).await, Some(7));
    }

    /// The thread of the runtime is blocked for more than the limit, as if the process were stopped: an answer that
    /// takes a moment afterwards is not too late.
    #[tokio::test]
    async fn a_process_that_was_stopped_waits_again() {
        let limit = Duration::from_millis(400);
        let stopped = async move {
            tokio::task::yield_now().await;
            sleep(2 * limit);
            tokio::time::sleep(limit / 2).await;
            "the answer"
        };
        let blocked = within_running_time(limit, tokio::spawn(stopped)).await;
        assert_eq!(blocked.expect("in time").unwrap(), "the answer");
    }
}
