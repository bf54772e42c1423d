//! Waits with a time limit.

use std::{future::Future, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{sleep, timeout},
};

pub(crate) use super::limits::{generous, limit, patience};

/// Returns the outcome of `body`. If `body` takes longer than `limit`, the test fails with `name` in its message.
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

/// Calls `seen` every millisecond until it returns true. The limit of the test ends a wait that never succeeds.
pub(crate) async fn until(mut seen: impl FnMut() -> bool) {
    while !seen() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Runs two futures, each in a task. Returns both outcomes; the first failure is returned at once and ends the other
/// task.
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
