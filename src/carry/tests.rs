//! The loop between two streams over loopback TCP.

use std::{
    fs::File,
    io::{self, Write},
    time::Instant,
};

use rustix::pipe::pipe;

use super::{CarryError, SETTLE_DELAY, Watched, receive_all, send_all, send_all_and_finish};
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
