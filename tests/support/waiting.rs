//! Waits with a time limit.

use std::{
    fs,
    future::Future,
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{sleep, timeout},
};

pub(crate) use super::limits::{generous, limit, patience, soon};

/// Returns the outcome of `body`. If `body` takes longer than `limit`, the test fails with `name` in its message.
pub(crate) async fn within<T>(
    limit: Duration,
    name: &str,
    body: impl Future<Output = Result<T>>,
) -> Result<T> {
    let _watchdog = Watchdog::start(limit + BLOCKED, name);
    let ended = timeout(limit, body).await;
    ended
        .with_context(|| format!("{name} hangs: nothing came of it in {limit:?}"))?
        .context(name.to_owned())
}

/// The time after its limit that a test has to end, before its process is aborted.
const BLOCKED: Duration = Duration::from_secs(30);

/// A thread that aborts the process after a time, unless this value is dropped before. A timeout of tokio has no effect
/// if a test blocks all threads of its runtime. Before it aborts, the thread prints where in the kernel each thread
/// waits.
struct Watchdog(#[allow(dead_code, reason = "its drop is the signal")] mpsc::Sender<()>);

impl Watchdog {
    fn start(limit: Duration, name: &str) -> Self {
        let (test, ended) = mpsc::channel();
        let name = name.to_owned();
        std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{name} blocks its threads: it has not ended after {limit:?}");
                for thread in fs::read_dir("/proc/self/task")
                    .into_iter()
                    .flatten()
                    .flatten()
                {
                    let [thread_name, waits, stack] = ["comm", "wchan", "stack"].map(|file| {
                        fs::read_to_string(thread.path().join(file)).unwrap_or_default()
                    });
                    eprintln!("{} in {waits}\n{stack}", thread_name.trim());
                }
                std::process::abort();
            }
        });
        Self(test)
    }
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
