//! The loop that moves the bytes of rdsend, rdrecv, rdcat and rdpipe: all of a source into a stream, and all of a
//! stream into a sink; and the threads on which it runs.
//!
//! [`send_all`] and [`receive_all`] move the bytes; both stop as soon as the stream fails. [`send_all_and_finish`] also
//! sends the end of the stream and waits for its confirmation. Opening the source or sink, committing the output and
//! confirming it are the caller's part, because a program, a pipeline's own end and an agent's stage do these at
//! different times.

mod pump;
mod rails;

use std::{io, sync::Arc, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Error, ReadHalf, Stream, Watch, WriteHalf,
    fd::{PositionedReader, PositionedWriter, Sink, Source},
};

pub(crate) use crate::threads::CarryThread;
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

    /// Returns the stream if it has several rails, and who wants to know how it gets on.
    fn railed(&mut self) -> Option<Railed<'_>> {
        None
    }
}

/// A stream of several rails.
pub(crate) struct Railed<'a> {
    pub(crate) stream: &'a mut Stream,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

/// Who is told how the rails of a stream get on.
pub(crate) trait Observer: Send + Sync {
    /// So many bytes were moved.
    fn moved(&self, bytes: usize);

    /// The first rail had to wait for the stream.
    fn waited(&self, time: Duration);
}

/// The source of a stream.
pub(crate) trait StreamSource: AsyncRead + Unpin {
    /// Returns a reader for several threads if there are at least so many bytes in a file.
    fn positioned(&self, _least: u64) -> Option<PositionedReader> {
        None
    }
}

impl StreamSource for Source {
    fn positioned(&self, least: u64) -> Option<PositionedReader> {
        Self::positioned(self, least)
    }
}

/// The sink of a stream.
pub(crate) trait StreamSink: AsyncWrite + Unpin {
    /// Returns a writer for several threads, if the order of the bytes does not matter.
    fn positioned(&self) -> Option<PositionedWriter> {
        None
    }
}

impl StreamSink for Sink {
    fn positioned(&self) -> Option<PositionedWriter> {
        Self::positioned(self)
    }
}

impl StreamSink for tokio::io::Sink {}

#[cfg(test)]
impl StreamSink for Vec<u8> {}

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

    fn railed(&mut self) -> Option<Railed<'_>> {
        (self.rails() > 1).then_some(Railed {
            stream: self,
            observer: None,
        })
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
