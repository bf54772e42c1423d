//! Waiting, but not for ever.

use std::{future::Future, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{sleep, timeout},
};

pub(crate) use super::limits::{generous, limit, patience};

/// What `body` comes to. A hang is a failure that bears its name.
pub(crate) async fn within<T>(
    limit: Duration,
    name: &str,
    body: impl Future<Output = Result<T>>,
) -> Result<T> {
    let ended = timeout(limit, body).await;
    ended
        .with_context(|| format!("{name} hangs: nothing came of it in {limit:?}"))?
        .context(name.to_owned())
}

/// Waits until something can be seen from outside; the test's own limit is the end of it.
pub(crate) async fn until(mut seen: impl FnMut() -> bool) {
    while !seen() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Runs both in tasks of their own. The first failure is the outcome, and ends the other.
pub(crate) async fn together<A: Send + 'static, B: Send + 'static>(
    a: impl Future<Output = Result<A>> + Send + 'static,
    b: impl Future<Output = Result<B>> + Send + 'static,
) -> Result<(A, B)> {
    let (a, b) = (tokio::spawn(a), tokio::spawn(b));
    let _ends = (Ends(a.abort_handle()), Ends(b.abort_handle()));
    tokio::try_join!(outcome(a), outcome(b))
}

async fn outcome<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    task.await.context("a task")?
}

/// Ends a task when dropped.
struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}
