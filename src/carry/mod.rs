//! The loop that moves the bytes of rdsend, rdrecv, rdcat and rdpipe: all of a source into a stream, and all of a
//! stream into a sink; and the threads on which it runs.
//!
//! [`send`] and [`receive`] move the bytes; both stop as soon as the stream fails. [`send_and_finish`] also sends the
//! end of the stream and waits for its confirmation. Opening the source or sink, committing the output and
//! confirming it are the caller's part, because a program, a pipeline's own end and an agent's stage do these at
//! different times.

mod buffer;
mod flow;
mod pump;
mod rails;

use std::{io, sync::Arc, task::Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Error, ReadHalf, Stream, Watch, WriteHalf,
    fd::{PositionedReader, PositionedWriter, Sink, Source},
};

pub(crate) use crate::threads::CarryThread;
pub(crate) use flow::{RateLimit, receive, send, send_and_finish};
pub(crate) use pump::receive_all;

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
    /// There is no buffer of `--buffer`. The error is a whole sentence; no byte was moved.
    #[error("{0}")]
    Buffer(io::Error),
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

/// Who is told how a stream, or the rails of one, get on.
pub(crate) trait Observer: Send + Sync {
    fn moved(&self, bytes: usize);

    /// The stream, or its first rail, makes its user wait from now on.
    fn wait_begins(&self);

    fn wait_ends(&self);
}

/// Tells an observer when a wait for a stream begins and ends. Polls that do not wait cost a look at a flag.
#[derive(Default)]
pub(crate) struct WaitClock {
    observer: Option<Arc<dyn Observer>>,
    runs: bool,
}

impl WaitClock {
    /// Returns a clock that does not run.
    pub(crate) fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            observer,
            runs: false,
        }
    }

    /// Starts the clock if the stream returned `Pending`, and stops it otherwise.
    pub(crate) fn watch<T>(&mut self, answer: Poll<T>) -> Poll<T> {
        let waits = answer.is_pending();
        if waits != self.runs {
            self.set(waits);
        }
        answer
    }

    fn set(&mut self, runs: bool) {
        self.runs = runs;
        match &self.observer {
            Some(observer) if runs => observer.wait_begins(),
            Some(observer) => observer.wait_ends(),
            None => {}
        }
    }
}

impl Drop for WaitClock {
    fn drop(&mut self) {
        if self.runs {
            self.set(false);
        }
    }
}

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
    /// Fails if the stream fails before the confirmation arrives.
    /// Cancel safe: a later call waits for the same confirmation.
    fn finish(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Waits for `work`, or fails as soon as the watched stream does.
///
/// If both are ready at the same time, the result of `work` is returned.
/// `work` is dropped when the stream fails.
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
        CarryError, Watched, flow::SETTLE_DELAY, pump::send_all, receive, receive_all, send,
        send_and_finish,
    };
    use crate::{
        Error, Key, Listener, Stream, StreamConfig, TransportPolicy, connect,
        fd::{Sink, Source},
        options::FlowOptions,
    };

    const BYTES: &[u8] = b"some bytes";

    /// More bytes than a stream, the sockets and a pipe hold.
    const MANY: usize = 40 << 20;

    const PLAIN: FlowOptions = FlowOptions {
        buffer: None,
        bwlimit: None,
    };

    /// Options with room for more than [`MANY`].
    const BUFFERED: FlowOptions = FlowOptions {
        buffer: Some(64 << 20),
        bwlimit: None,
    };

    fn many() -> Vec<u8> {
        let words: Vec<[u8; 4]> = (0_u32..).map(u32::to_le_bytes).take(MANY / 4).collect();
        words.concat()
    }

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
        let sending = async { send_and_finish(&mut ended_pipe(), &mut near, PLAIN).await };
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
        let sending = async { send_and_finish(&mut ended_pipe(), &mut write, PLAIN).await };
        let receiving = async {
            let mut sink = Vec::new();
            receive_all(&mut read, &mut sink).await.unwrap();
            read.confirm().unwrap();
            sink
        };
        let (sent, sink) = tokio::join!(sending, receiving);
        assert_eq!((sent.unwrap(), sink.as_slice()), (count, BYTES));
    }

    #[tokio::test]
    async fn a_buffer_takes_all_while_the_sink_takes_nothing() {
        let (mut near, mut far) = stream().await;
        let (reader, writer) = pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(&many()).unwrap();
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        let mut source = Source::new(file.into()).unwrap();
        let mut sink = Sink::new(writer, "a pipe").unwrap();
        let sent = async {
            let sent = send_all(&mut source, &mut near).await.unwrap();
            // Everything is under way, and most of it has left this end: only now is the pipe read.
            let reading = std::thread::spawn(move || {
                let mut bytes = vec![0; MANY];
                std::io::Read::read_exact(&mut File::from(reader), &mut bytes).unwrap();
                bytes
            });
            near.finish().await.unwrap();
            (sent, reading.join().unwrap())
        };
        let received = async {
            let received = receive(&mut far, &mut sink, BUFFERED).await.unwrap();
            far.confirm().unwrap();
            received
        };
        let ((sent, bytes), received) = tokio::join!(sent, received);
        assert_eq!((sent, received), (MANY as u64, MANY as u64));
        assert!(bytes == many());
    }

    #[tokio::test]
    async fn a_buffer_reads_all_while_the_stream_takes_nothing() {
        let (mut near, mut far) = stream().await;
        let (reader, writer) = pipe().unwrap();
        let writing = std::thread::spawn(move || File::from(writer).write_all(&many()).unwrap());
        let mut source = Source::new(reader).unwrap();
        let sending = async {
            let sent = send_and_finish(&mut source, &mut near, BUFFERED).await;
            sent.unwrap()
        };
        let receiving = async {
            // The whole source is read before the first byte is received.
            while !writing.is_finished() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            let mut sink = Vec::new();
            receive_all(&mut far, &mut sink).await.unwrap();
            far.confirm().unwrap();
            sink
        };
        let (sent, sink) = tokio::join!(sending, receiving);
        assert_eq!(sent, MANY as u64);
        assert!(sink == many());
    }

    #[tokio::test]
    async fn a_failure_behind_a_buffer_names_the_byte_of_the_sink() {
        let (mut near, mut far) = stream().await;
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut sink = Sink::new(full.into(), "/dev/full").unwrap();
        let mut source = ended_pipe();
        let sending = send_and_finish(&mut source, &mut near, PLAIN);
        let received = tokio::select! {
            sent = sending => panic!("{sent:?}"),
            received = receive(&mut far, &mut sink, BUFFERED) => received,
        };
        match received {
            Err(CarryError::Sink { offset: 0, source }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_abort_is_noticed_beside_a_buffer() {
        let (mut near, mut far) = stream().await;
        let (reader, _silent_writer) = pipe().unwrap();
        let mut source = Source::new(reader).unwrap();
        far.abort("enough");
        let sent = send(&mut source, &mut near, BUFFERED).await;
        assert!(matches!(
            sent,
            Err(CarryError::Stream(Error::PeerAborted { .. }))
        ));
    }

    #[tokio::test]
    async fn a_limit_holds_at_each_end() {
        const RATE: u64 = 1 << 20;
        let limited = FlowOptions {
            bwlimit: Some(RATE),
            buffer: None,
        };
        let free = FlowOptions::default();
        for (at_sender, at_receiver) in [(limited, free), (free, limited), (limited, BUFFERED)] {
            let (mut near, mut far) = stream().await;
            let file = tempfile::tempfile().unwrap();
            (&file).write_all(&many()[..1 << 19]).unwrap();
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
            let mut source = Source::new(file.into()).unwrap();
            let null = File::options().write(true).open("/dev/null").unwrap();
            let mut sink = Sink::new(null.into(), "/dev/null").unwrap();
            let started = Instant::now();
            let receiving = async {
                receive(&mut far, &mut sink, at_receiver).await.unwrap();
                far.confirm().unwrap();
            };
            let sending = send_and_finish(&mut source, &mut near, at_sender);
            let (sent, ()) = tokio::join!(sending, receiving);
            assert_eq!(sent.unwrap(), 1 << 19);
            // Half a second, less the burst at the beginning and the piece at the end.
            assert!(started.elapsed().as_secs_f64() > 0.5 - 0.1 - 0.05);
        }
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
        let (sent, ()) = tokio::join!(send_and_finish(&mut source, &mut near, PLAIN), receiving);
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
        let sending = send_and_finish(&mut source, &mut near, PLAIN);
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
