//! `RdmaStream` uses RDMA or fails. The promises test the bytes that it carries.

#[cfg(feature = "fault-injection")]
use std::time::Duration;

use rdpipe::{
    Error, HandshakeFault, Key, Listener, Rails, RdmaStream, StreamConfig, TransportPolicy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    data_path::{DataPath, listener, meet},
    skip,
};
#[cfg(feature = "fault-injection")]
use crate::support::{
    pattern::{Pattern, own},
    waiting::{generous, patience, together, within},
};

#[tokio::test]
async fn a_stream_over_tcp_is_returned_unharmed() {
    let config = StreamConfig::default;
    let (mut dialer, acceptor) = DataPath::Tcp.pair(config(), config()).await.unwrap();
    let not = RdmaStream::try_from(acceptor).unwrap_err();
    assert!(
        not.to_string().starts_with("the data would go over TCP: "),
        "{not}"
    );
    let mut acceptor = not.into_inner();
    dialer.write_all(b"all the same").await.unwrap();
    let shutdown = dialer.shutdown();
    let mut text = String::new();
    let (shutdown, read) = tokio::join!(shutdown, acceptor.read_to_string(&mut text));
    shutdown.unwrap();
    read.unwrap();
    assert_eq!(text, "all the same");
}

#[tokio::test]
async fn an_acceptor_that_requires_rdma_tells_the_dialer_why() {
    let key = Key::generate().unwrap();
    let mut config = StreamConfig::default();
    config.transport = TransportPolicy::Tcp;
    let listening = Listener::bind("127.0.0.1:0", key.key().clone(), config.clone());
    let listener = listening.await.unwrap();
    let port = listener.local_addr().port();
    let dialing = rdpipe::connect(("127.0.0.1", port), key.key(), &config);
    let (dialer, acceptor) = tokio::join!(dialing, RdmaStream::accept(&listener));
    let error = acceptor.unwrap_err();
    let transport = |error: &Error| {
        matches!(
            error,
            Error::Handshake {
                fault: HandshakeFault::Transport(_),
                ..
            }
        )
    };
    assert!(transport(&error), "{error}");
    let error = dialer.unwrap().read_u8().await.unwrap_err();
    assert!(
        error.to_string().contains("the data would go over TCP"),
        "{error}"
    );
}

#[tokio::test]
async fn a_dialer_that_requires_rdma_never_gets_tcp() {
    let key = Key::generate().unwrap();
    let mut config = StreamConfig::default();
    config.transport = TransportPolicy::Tcp;
    let listening = Listener::bind("127.0.0.1:0", key.key().clone(), config.clone());
    let listener = listening.await.unwrap();
    let port = listener.local_addr().port();
    // Without a device the error is the missing device; with one it is the refusal of the peer.
    let dialed = RdmaStream::connect(("127.0.0.1", port), key.key(), &config).await;
    let error = dialed.unwrap_err();
    let refused = matches!(
        error,
        Error::Device { .. }
            | Error::Handshake {
                fault: HandshakeFault::Refused(_),
                ..
            }
    );
    assert!(refused && error.to_string().contains("RDMA"), "{error}");
}

#[tokio::test]
async fn bytes_copied_into_an_rdma_stream_come_out() {
    if let Some(why) = DataPath::Rdma.missing() {
        return skip(&why);
    }
    let config = StreamConfig::default;
    let (dialer, acceptor) = DataPath::Rdma.pair(config(), config()).await.unwrap();
    let mut dialer = RdmaStream::try_from(dialer).unwrap();
    let mut acceptor = RdmaStream::try_from(acceptor).unwrap();
    let input = vec![7; 3_000_000];
    let giving = async {
        tokio::io::copy(&mut &input[..], &mut dialer).await?;
        Ok::<_, std::io::Error>(dialer.finish().await?)
    };
    let taking = async {
        let mut output = Vec::new();
        tokio::io::copy_buf(&mut acceptor, &mut output).await?;
        acceptor.confirm()?;
        Ok::<_, std::io::Error>(output)
    };
    let (given, taken) = tokio::join!(giving, taking);
    given.unwrap();
    assert!(taken.unwrap() == input);
}

/// Small messages stay on the first rail, which has the express path: 16 KiB cross it in four small frames, and are one
/// chunk without it.
#[tokio::test]
async fn small_messages_take_the_express_path_however_many_rails_there_are() {
    if let Some(why) = DataPath::Rdma.missing() {
        return skip(&why);
    }
    let message = vec![7; 16 << 10];
    for (rails, small_frames, chunks) in [(1, 32, 4), (2, 32, 4), (3, 32, 4), (2, 0, 1)] {
        let mut config = DataPath::Rdma.config(StreamConfig::default());
        config.rails = Rails::Exactly(rails);
        config.rdma.small_frames = small_frames;
        let (listener, key) = listener(config.clone()).await.unwrap();
        let port = listener.local_addr().port();
        let (mut dialer, mut acceptor) = meet(listener, port, &key, &config).await.unwrap();
        assert_eq!(dialer.rails(), usize::from(rails));
        for round in 1..4 {
            let mut answer = vec![0; message.len()];
            dialer.write_all(&message).await.unwrap();
            dialer.flush().await.unwrap();
            acceptor.read_exact(&mut answer).await.unwrap();
            assert!(answer == message, "{rails} rails");
            assert_eq!(dialer.stats().chunks_sent, round * chunks, "{rails} rails");
        }
    }
}

/// The ends of an RDMA stream, of which one loses the completions of its device.
#[cfg(feature = "fault-injection")]
async fn losing_completions(at_dialer: bool) -> (rdpipe::Stream, rdpipe::Stream) {
    let config = |loses| {
        let mut config = StreamConfig::default();
        config.timeout = patience(Duration::from_secs(2));
        (config.chunk_bytes, config.depth) = (64 << 10, 4);
        // Without an express path, so that the first bytes are written into a slot.
        config.rdma.small_frames = 0;
        config.faults.lose_completions = loses;
        config
    };
    let ends = DataPath::Rdma
        .pair(config(at_dialer), config(!at_dialer))
        .await;
    ends.unwrap()
}

/// The chunks have arrived in memory, and the device of the reader never reports it.
#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_reports_no_arrivals_is_replaced() {
    if let Some(why) = DataPath::Rdma.missing() {
        return skip(&why);
    }
    within(generous(), "a link that reports nothing", async {
        let (mut writer, mut reader) = losing_completions(false).await;
        let bytes = 1_000_000;
        let writing = async move {
            Pattern::new(67).write(&mut writer, 0..bytes).await?;
            writer.finish().await?;
            Ok(())
        };
        let reading = async move {
            Pattern::new(67).read_all(&mut reader, 0..bytes).await?;
            reader.confirm()?;
            reader.close().await;
            Ok(())
        };
        together(writing, reading).await
    })
    .await
    .unwrap();
}

/// The chunks have arrived, and the device of the writer never reports it.
#[cfg(feature = "fault-injection")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_completes_no_write_fails_both_ends() {
    if let Some(why) = DataPath::Rdma.missing() {
        return skip(&why);
    }
    within(generous(), "a device that completes nothing", async {
        let (mut writer, mut reader) = losing_completions(true).await;
        let writing = async move { own(&Pattern::new(68).write_on(&mut writer).await?) };
        let reading = async move { Pattern::new(68).drain(&mut reader, 0).await?.failure() };
        let (there, here) = together(writing, reading).await?;
        for error in [there, here] {
            let text = error.to_string();
            anyhow::ensure!(text.contains("the data connection broke"), "{text}");
        }
        Ok(())
    })
    .await
    .unwrap();
}
