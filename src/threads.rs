//! Threads for work that blocks, and runtimes of one thread. Where the system starts no more threads, or opens no more
//! descriptors, the work fails with an error: tokio's `spawn_blocking`, `lookup_host`, its runtimes of several threads
//! and the first runtime of a process panic there.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

use tokio::sync::oneshot;

/// Runs `work`, which may block, on a thread of its own, and returns its result. Starting a thread takes some 20 µs, so
/// this is not for the path of the bytes.
///
/// # Errors
///
/// Fails if the system cannot start a thread.
///
/// # Panics
///
/// Panics if `work` does.
///
/// # Cancel safety
///
/// Not cancel safe: `work` continues if the future is dropped, and its result is lost.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, result) = oneshot::channel();
    let run = move || {
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    };
    let thread = thread::Builder::new().name("blocking".to_owned());
    thread.spawn(run).map_err(|error| unstarted(&error))?;
    match result.await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(io::Error::other("a thread ended before its work")),
    }
}

/// Returns the addresses of a host, as [`tokio::net::lookup_host`] does.
///
/// # Errors
///
/// Fails if the name cannot be resolved, or the system cannot start a thread.
///
/// # Cancel safety
///
/// Safe: the thread of the resolver ends later.
pub(crate) async fn lookup_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    lookup_host_holding(host, port, ()).await
}

/// Returns the addresses of a host, as [`lookup_host`] does. The thread of the resolver holds `held` until it ends: so
/// many threads are left of work that was given up.
///
/// # Errors
///
/// Fails if the name cannot be resolved, or the system cannot start a thread.
///
/// # Cancel safety
///
/// Safe: the thread of the resolver ends later.
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
///
/// # Errors
///
/// Fails if the system does not open the descriptors of the runtime.
#[cfg(feature = "cli")]
pub(crate) fn runtime() -> io::Result<tokio::runtime::Runtime> {
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
///
/// # Errors
///
/// Why no more threads start.
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
