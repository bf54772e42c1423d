//! A time limit on the silence of the other end of a session.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

/// The number of steps in which the silence is counted.
const STEPS: u32 = 8;

/// Nothing arrived in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Silent;

/// Waits for `arrival`, at most until the other end was silent for `limit` while this process ran.
///
/// If a timer comes late by half of `limit`, this process or its machine did not run meanwhile: it was stopped, or
/// suspended. What the other end was to answer was then not sent, so the whole of `limit` begins again.
///
/// # Errors
///
/// [`Silent`] if nothing arrived.
///
/// # Cancel safety
///
/// That of `arrival`.
pub(crate) async fn unless_silent<T>(
    limit: Duration,
    arrival: impl Future<Output = T>,
) -> Result<T, Silent> {
    let mut arrival = pin!(arrival);
    let mut steps = 0;
    while steps < STEPS {
        let began = Instant::now();
        if let Ok(arrived) = timeout(limit / STEPS, arrival.as_mut()).await {
            return Ok(arrived);
        }
        let has_run = began.elapsed() < limit / STEPS + limit / 2;
        steps = if has_run { steps + 1 } else { 0 };
    }
    Err(Silent)
}

#[cfg(test)]
mod tests {
    use std::{future::pending, thread::sleep};

    use super::*;

    #[tokio::test]
    async fn silence_ends_after_the_limit() {
        let began = Instant::now();
        let limit = Duration::from_millis(80);
        assert_eq!(unless_silent(limit, pending::<()>()).await, Err(Silent));
        assert!(began.elapsed() >= limit);
        assert_eq!(unless_silent(limit, async { 7 }).await, Ok(7));
    }

    /// The thread of the runtime is blocked for more than the limit, as if the process were stopped: an answer that takes
    /// a moment afterwards is not too late.
    #[tokio::test]
    async fn a_process_that_was_stopped_waits_again() {
        let limit = Duration::from_millis(400);
        let stopped = async move {
            tokio::task::yield_now().await;
            sleep(2 * limit);
            tokio::time::sleep(limit / 2).await;
            "the answer"
        };
        let blocked = unless_silent(limit, tokio::spawn(stopped)).await;
        assert_eq!(blocked.expect("it is not silent").unwrap(), "the answer");
    }
}
