//! Threads for work that blocks, and runtimes of one thread. Where the system starts no more threads, or opens no more
//! descriptors, the work fails with an error: tokio's `spawn_blocking`, `lookup_host`, its runtimes of several threads
//! and the first runtime of a process panic there.
//! Tasks are spawned by [`spawn`] in place of `tokio::spawn`, which takes a tenth longer to compile.

#[cfg(feature = "cli")]
use std::any::Any;
use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, LazyLock},
    thread,
};

use futures::future::BoxFuture;
use tokio::{
    runtime::{EnterGuard, Handle, Runtime},
    sync::oneshot,
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Returns true if this process may use several processors.
pub(crate) fn is_parallel() -> bool {
    static PARALLEL: LazyLock<bool> = LazyLock::new(|| {
        thread::available_parallelism().is_ok_and(|processors| processors.get() > 1)
    });
    *PARALLEL
}

/// Runs `work`, which may block, on a thread of its own, and returns its result. Starting a thread takes some 20 µs, so
/// this is not for the path of the bytes.
/// Panics if `work` does.
/// Not cancel safe: `work` continues if the future is dropped, and its result is lost.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, result) = oneshot::channel();
    let run = move || {
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    };
    // As one type, so that what starts a thread is compiled once, and not for each kind of work.
    let run: Box<dyn FnOnce() + Send> = Box::new(run);
    let thread = thread::Builder::new().name("blocking".to_owned());
    thread.spawn(run).map_err(|error| unstarted(&error))?;
    match result.await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(io::Error::other("a thread ended before its work")),
    }
}

/// Spawns `work` as [`tokio::spawn`] does, in a box: so tokio's task, some 2,700 lines of LLVM, is compiled once for each
/// type of result, and not for each kind of work.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(Box::pin(work) as BoxFuture<'static, T>)
}

/// Returns the addresses of a host, as [`tokio::net::lookup_host`] does.
/// Fails if the name cannot be resolved, or the system cannot start a thread.
/// Cancel safe: the thread of the resolver ends later.
pub(crate) async fn lookup_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    lookup_host_holding(host, port, ()).await
}

/// Returns the addresses of a host, as [`lookup_host`] does. The thread of the resolver holds `held` until it ends: so
/// many threads are left of work that was given up.
/// Fails if the name cannot be resolved, or the system cannot start a thread.
/// Cancel safe: the thread of the resolver ends later.
pub(crate) async fn lookup_host_holding(
    host: &str,
    port: u16,
    held: impl Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    let lookup = move || {
        let found = (host.as_str(), port).to_socket_addrs();
        drop(held);
        found
    };
    Ok(blocking(lookup).await??.collect())
}

/// Returns a runtime of one thread. Waking it costs one write to an eventfd; a pool of workers adds a futex call on
/// both sides (measured: a third of all system calls at full speed).
/// Fails if the system does not open the descriptors of the runtime.
pub(crate) fn runtime() -> io::Result<Runtime> {
    /// As many pairs as a runtime opens descriptors: six.
    const PAIRS: usize = 3;
    // The first runtime of a process makes a pair of sockets for the signals, and panics if it gets none.
    let spare = (0..PAIRS).map(|_| std::os::unix::net::UnixStream::pair());
    drop(spare.collect::<io::Result<Vec<_>>>()?);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Fails if the system does not start `count` threads at once. A runtime that needs so many can then be made.
/// The error says why no more threads start.
#[cfg(feature = "cli")]
pub(crate) fn require(count: usize) -> io::Result<()> {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
    let start = |_| {
        let gate = std::sync::Arc::clone(&gate);
        // Waits until `open` is dropped.
        let wait = move || drop(gate.lock().map(|gate| gate.recv()));
        let thread = thread::Builder::new().spawn(wait);
        thread.map_err(|error| unstarted(&error))
    };
    let threads: io::Result<Vec<_>> = (0..count).map(start).collect();
    drop(open);
    for thread in threads? {
        let _ = thread.join();
    }
    Ok(())
}

/// Returns the error of a thread that was not started, in words.
fn unstarted(error: &io::Error) -> io::Error {
    let text = format!("cannot start a thread: {error}; see `ulimit -u`");
    io::Error::new(error.kind(), text)
}

/// A thread with a tokio runtime of its own, on which bytes are carried.
///
/// Files are read and written on the thread that carries their bytes. With one thread for each edge
/// or direction, a slow disk delays only its own bytes. A stream belongs to the runtime on which it
/// was created, so a stage's edge is also connected on this thread.
///
/// The thread ends when every clone of this value has been dropped and all work has ended.
#[derive(Debug, Clone)]
pub(crate) struct CarryThread {
    runtime: Handle,
    #[cfg_attr(
        not(feature = "cli"),
        allow(dead_code, reason = "held until it is dropped")
    )]
    in_use: Arc<DropGuard>,
}

/// The runtime of a thread. If the thread cannot be started, it is dropped inside another runtime, where the drop of a
/// [`Runtime`] panics.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl CarryThread {
    /// Starts a thread called `name`.
    /// Fails if the system cannot start a thread or give the runtime its descriptors.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        Self::start_holding(name, ())
    }

    /// Starts a thread called `name`, which drops `held` when it ends: what waits for that knows that no work of the
    /// thread is left.
    /// Fails if the system cannot start a thread or give the runtime its descriptors.
    pub(crate) fn start_holding(name: &str, held: impl Send + 'static) -> io::Result<Self> {
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        let runtime = OwnRuntime(Some(runtime));
        let unused = CancellationToken::new();
        let in_use = Arc::new(unused.clone().drop_guard());
        let run = move || {
            // All of `runtime` moves to the thread.
            let runtime = runtime;
            if let Some(runtime) = &runtime.0 {
                runtime.block_on(unused.cancelled());
            }
            // The tasks that are left are dropped with the runtime.
            drop(runtime);
            drop(held);
        };
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self {
            runtime: handle,
            in_use,
        })
    }

    /// Makes the runtime of the thread the current one: what is registered or spawned then belongs to it.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Runs `work` on the thread and returns its result.
    /// `work` continues if the future is dropped.
    /// Panics if `work` does.
    #[cfg(feature = "cli")]
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let in_use = Arc::clone(&self.in_use);
        // Work and result in boxes: so tokio's task, some 2,700 lines of LLVM, is compiled once, and not for each work.
        let working: BoxFuture<'static, Box<dyn Any + Send>> = Box::pin(async move {
            let result = work.await;
            drop(in_use);
            Box::new(result) as Box<dyn Any + Send>
        });
        match self.runtime.spawn(working).await {
            Ok(result) => *result.downcast().expect("the type of the work"),
            Err(error) => resume_unwind(error.into_panic()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blocking_work_returns_its_result() {
        assert_eq!(blocking(|| 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn the_thread_of_a_resolver_holds_what_it_is_given() {
        let (held, ended) = oneshot::channel::<()>();
        // The future is dropped before the thread has ended.
        let lookup = lookup_host_holding("localhost", 9, held);
        let given_up = tokio::time::timeout(std::time::Duration::ZERO, lookup);
        drop(given_up.await);
        assert!(ended.await.is_err());
    }

    #[tokio::test]
    async fn names_and_addresses_are_looked_up() {
        let found = lookup_host("::1", 9).await.unwrap();
        assert_eq!(found, ["[::1]:9".parse().unwrap()]);
        let found = lookup_host("localhost", 9).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()));
        assert!(!found.is_empty());
    }
}
