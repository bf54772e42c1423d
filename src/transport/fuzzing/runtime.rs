//! The runtime on which fuzz targets run asynchronous code.

use tokio::runtime::Builder;

/// Runs `play` to its end on a runtime of its own, and returns its result.
///
/// Dropping the runtime frees every task and every socket that `play` leaves behind. A runtime that all executions shared
/// would keep them: it runs tasks, and frees the registrations of closed sockets, only while a future waits.
pub(crate) fn run<T>(play: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(play)
}
