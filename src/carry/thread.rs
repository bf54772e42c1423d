//! A thread that moves the bytes of one edge, or of one direction of a stream.

use std::{io, sync::Arc, thread};

use tokio::runtime::{Handle, Runtime};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::threads;

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
    ///
    /// # Errors
    ///
    /// Fails if the system cannot start a thread or give the runtime its descriptors.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let runtime = threads::runtime()?;
        let handle = runtime.handle().clone();
        let mut runtime = OwnRuntime(Some(runtime));
        let unused = CancellationToken::new();
        let in_use = Arc::new(unused.clone().drop_guard());
        let run = move || {
            // All of `runtime` moves to the thread.
            let runtime = &mut runtime;
            if let Some(runtime) = &runtime.0 {
                runtime.block_on(unused.cancelled());
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self {
            runtime: handle,
            in_use,
        })
    }

    /// Runs `work` on the thread and returns its result.
    ///
    /// # Cancel safety
    ///
    /// `work` continues if the future is dropped.
    ///
    /// # Panics
    ///
    /// Panics if `work` does.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let in_use = Arc::clone(&self.in_use);
        let working = async move {
            let result = work.await;
            drop(in_use);
            result
        };
        match self.runtime.spawn(working).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
