//! The loop that moves the bytes of rdsend, rdrecv, rdcat and rdpipe: all of a source into a stream, and all of a
//! stream into a sink; and the threads on which it runs.
//!
//! [`send_all`] and [`receive_all`] move the bytes; both stop as soon as the stream fails. [`send_all_and_finish`] also
//! sends the end of the stream and waits for its confirmation. Opening the source or sink, committing the output and
//! confirming it are the caller's part, because a program, a pipeline's own end and an agent's stage do these at
//! different times.

mod pump;

use std::{io, sync::Arc, thread};

use tokio::runtime::{Handle, Runtime};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Error, ReadHalf, Stream, Watch, WriteHalf, threads};

pub(crate) use pump::{receive_all, send_all, send_all_and_finish};

/// The end that failed while bytes were carried between a stream and a local file, pipe or terminal.
///
/// The error does not name the source or sink: each program has its own name for it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    /// The source could not be read.
    #[error("cannot read the input at byte {offset}: {source}")]
    Source {
        /// The number of bytes that were read before.
        offset: u64,
        /// The error of the read.
        source: io::Error,
    },
    /// The sink could not be written or flushed.
    #[error("cannot write the output at byte {offset}: {source}")]
    Sink {
        /// The number of bytes that the sink took before.
        offset: u64,
        /// The error of the write; `BrokenPipe` if the reader of the sink has left.
        source: io::Error,
    },
    /// The stream failed, or its peer stopped reading ([`Error::Stopped`]).
    #[error(transparent)]
    Stream(#[from] Error),
}

impl CarryError {
    /// Takes the stream's error out of the [`io::Error`] in which tokio's traits pass it on.
    fn of_stream(error: &io::Error) -> Self {
        Self::Stream(stream_error(error))
    }
}

/// Returns the error of a stream that one of its tokio traits has returned.
pub(crate) fn stream_error(error: &io::Error) -> Error {
    // Every error of a stream has an `Error` inside; the default keeps an exception a failure.
    let inner = Error::from_io(error).cloned();
    inner.unwrap_or(Error::Misuse("the stream failed without a reason"))
}

/// A stream, or a half of one, whose failure can be awaited while its bytes are moved.
pub(crate) trait Watched {
    /// Returns a watch on the stream.
    fn watch(&self) -> Watch;
}

/// The sending side of a stream.
pub(crate) trait Finish {
    /// Sends the end of the stream and waits until the peer has confirmed all bytes.
    ///
    /// # Errors
    ///
    /// Fails if the stream fails before the confirmation arrives.
    ///
    /// # Cancel safety
    ///
    /// Safe: a later call waits for the same confirmation.
    fn finish(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Waits for `work`, or fails as soon as the watched stream does.
///
/// If both are ready at the same time, the result of `work` is returned.
///
/// # Errors
///
/// Returns the error that ended the stream.
///
/// # Cancel safety
///
/// That of `work`, which is dropped when the stream fails.
pub(crate) async fn unless_interrupted<T>(
    watch: &Watch,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        result = work => Ok(result),
        error = watch.interrupted() => Err(error),
    }
}

impl Watched for Stream {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Watched for ReadHalf {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Watched for WriteHalf {
    fn watch(&self) -> Watch {
        Self::watch(self)
    }
}

impl Finish for Stream {
    async fn finish(&mut self) -> Result<(), Error> {
        Self::finish(self).await
    }
}

impl Finish for WriteHalf {
    async fn finish(&mut self) -> Result<(), Error> {
        Self::finish(self).await
    }
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
        Self::start_holding(name, ())
    }

    /// Starts a thread called `name`, which drops `held` when it ends: what waits for that knows that no work of the
    /// thread is left.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot start a thread or give the runtime its descriptors.
    pub(crate) fn start_holding(name: &str, held: impl Send + 'static) -> io::Result<Self> {
        let runtime = threads::runtime()?;
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

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{self, Write},
        time::Instant,
    };

    use rustix::pipe::pipe;

    use super::{
        CarryError, Watched, pump::SETTLE_DELAY, receive_all, send_all, send_all_and_finish,
    };
    use crate::{
        Error, Key, Listener, Stream, StreamConfig, TransportPolicy, connect,
        fd::{Sink, Source},
    };

    const BYTES: &[u8] = b"some bytes";

    /// Returns the two ends of one stream.
    async fn stream() -> (Stream, Stream) {
        let config = StreamConfig {
            transport: TransportPolicy::Tcp,
            ..StreamConfig::default()
        };
        let generated = Key::generate().unwrap();
        let key = generated.key();
        let listening = Listener::bind("127.0.0.1:0", key.clone(), config.clone());
        let listener = listening.await.unwrap();
        let dialing = connect(listener.local_addr(), key, &config);
        let (accepted, connected) = tokio::join!(listener.accept(), dialing);
        (accepted.unwrap(), connected.unwrap())
    }

    /// Returns a source that ends after [`BYTES`].
    fn ended_pipe() -> Source {
        let (reader, writer) = pipe().unwrap();
        File::from(writer).write_all(BYTES).unwrap();
        Source::new(reader).unwrap()
    }

    #[tokio::test]
    async fn everything_arrives_through_whole_streams_and_through_halves() {
        let (mut near, mut far) = stream().await;
        let sending = async { send_all_and_finish(&mut ended_pipe(), &mut near).await };
        let receiving = async {
            let mut sink = Vec::new();
            let received = receive_all(&mut far, &mut sink).await.unwrap();
            far.confirm().unwrap();
            (received, sink)
        };
        let (sent, (received, sink)) = tokio::join!(sending, receiving);
        let count = BYTES.len() as u64;
        assert_eq!(
            (sent.unwrap(), received, sink.as_slice()),
            (count, count, BYTES)
        );

        let (near, far) = stream().await;
        let (_near_read, mut write) = near.into_split();
        let (mut read, _far_write) = far.into_split();
        let sending = async { send_all_and_finish(&mut ended_pipe(), &mut write).await };
        let receiving = async {
            let mut sink = Vec::new();
            receive_all(&mut read, &mut sink).await.unwrap();
            read.confirm().unwrap();
            sink
        };
        let (sent, sink) = tokio::join!(sending, receiving);
        assert_eq!((sent.unwrap(), sink.as_slice()), (count, BYTES));
    }

    /// The end of a pipe may be the death of its writer, by a signal that is about to arrive here too.
    #[tokio::test]
    async fn only_a_regular_file_ends_at_once() {
        assert!(!ended_pipe().is_regular_file());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(BYTES).unwrap();
        assert!(Source::new(file.into()).unwrap().is_regular_file());

        let (mut near, mut far) = stream().await;
        let receiving = async {
            receive_all(&mut far, &mut Vec::new()).await.unwrap();
            far.confirm().unwrap();
        };
        let started = Instant::now();
        let mut source = ended_pipe();
        let (sent, ()) = tokio::join!(send_all_and_finish(&mut source, &mut near), receiving);
        sent.unwrap();
        assert!(started.elapsed() >= SETTLE_DELAY);
    }

    #[tokio::test]
    async fn an_abort_is_noticed_while_the_source_is_idle() {
        let (mut near, mut far) = stream().await;
        let (reader, _silent_writer) = pipe().unwrap();
        let mut source = Source::new(reader).unwrap();
        far.abort("enough");
        let sent = send_all(&mut source, &mut near).await;
        let aborted = matches!(&sent, Err(CarryError::Stream(Error::PeerAborted { reason, .. })) if reason == "enough");
        assert!(aborted, "{sent:?}");
        assert!(Watched::watch(&near).error().is_some());
    }

    #[tokio::test]
    async fn an_abort_is_noticed_while_the_sink_takes_nothing() {
        let (mut near, mut far) = stream().await;
        let (_reader_of_nothing, writer) = pipe().unwrap();
        let mut sink = Sink::new(writer, "a full pipe").unwrap();
        let mut source = Source::new(File::open("/dev/zero").unwrap().into()).unwrap();
        let sending = async {
            tokio::select! {
                sent = send_all(&mut source, &mut near) => panic!("{sent:?}"),
                () = tokio::task::yield_now() => near.abort("enough"),
            }
        };
        let (received, ()) = tokio::join!(receive_all(&mut far, &mut sink), sending);
        let aborted = matches!(received, Err(CarryError::Stream(Error::PeerAborted { .. })));
        assert!(aborted, "{received:?}");
    }

    #[tokio::test]
    async fn a_full_device_is_the_failure_of_the_sink() {
        let (mut near, mut far) = stream().await;
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut sink = Sink::new(full.into(), "/dev/full").unwrap();
        let mut source = ended_pipe();
        let sending = send_all_and_finish(&mut source, &mut near);
        let received = tokio::select! {
            sent = sending => panic!("{sent:?}"),
            received = receive_all(&mut far, &mut sink) => received,
        };
        match received {
            Err(CarryError::Sink { offset: 0, source }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
            }
            other => panic!("{other:?}"),
        }
    }
}
