//! A thread with a runtime of its own, on which the bytes of one edge, or of one direction, move.

use std::{io, thread};

use tokio::runtime::{Builder, Handle};

/// A runtime of one thread, which lives as long as the process. A disk that stalls it holds up nobody else.
/// A stream belongs to the runtime that it is made on, so a stage's edge is connected here, too.
#[derive(Debug, Clone)]
pub(crate) struct CarryThread(Handle);

impl CarryThread {
    /// # Errors
    ///
    /// When the system has no thread to give.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(std::future::pending::<()>());
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self(handle))
    }

    /// Runs `work` there and waits for it.
    ///
    /// # Cancel safety
    ///
    /// `work` goes on when the future is dropped.
    ///
    /// # Panics
    ///
    /// Where `work` does.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.0.spawn(work).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
