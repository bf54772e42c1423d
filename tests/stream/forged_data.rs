//! Somebody on the path who changes the frames of the data connection, and computes the checks of their headers again,
//! gets no byte of his into an encrypted stream.

#[path = "../support/on_path.rs"]
mod on_path;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rdpipe::{Encryption, Error, Fault, Key, Listener, Stream, StreamConfig, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::on_path::{CHECKED_BYTES, HEADER_BYTES, Tamper, flip, markers, recording, tampering};
use crate::support::{
    data_path,
    relay::{Relay, Towards},
    waiting::{generous, patience, within},
};

fn config() -> StreamConfig {
    let mut config = StreamConfig::default();
    (config.chunk_bytes, config.depth) = (8 << 10, 4);
    config.encryption = Encryption::Always;
    // Some of the frames that were changed promise bytes that never come.
    config.timeout = patience(Duration::from_secs(1));
    config
}

/// A listener and its key, for one stream after the other.
struct Acceptor {
    listener: Listener,
    key: Key,
}

impl Acceptor {
    async fn new() -> Result<Self> {
        let (listener, key) = data_path::listener(config()).await?;
        Ok(Self { listener, key })
    }

    /// Connects through somebody who changes frames.
    async fn meet(&self, tamper: Tamper) -> Result<(Stream, Stream, Relay)> {
        let relay = tampering(self.listener.local_addr(), tamper);
        let port = relay.port();
        let config = config();
        let dialing = async {
            let dialed = connect(("127.0.0.1", port), &self.key, &config).await;
            dialed.context("the dialer")
        };
        let accepting = async { self.listener.accept().await.context("the acceptor") };
        let (dialer, acceptor) = tokio::try_join!(dialing, accepting)?;
        Ok((dialer, acceptor, relay))
    }

    /// Sends `bytes` to the acceptor. Returns what it has read, and the error after that.
    async fn send(&self, bytes: &[u8], tamper: Tamper) -> Result<(Vec<u8>, Option<Error>)> {
        let (mut dialer, mut acceptor, _relay) = self.meet(tamper).await?;
        let sending = async {
            let sent = dialer.write_all(bytes).await;
            let ended = match sent {
                Ok(()) => dialer.shutdown().await,
                failed => failed,
            };
            anyhow::Ok(ended.is_ok())
        };
        let reading = async {
            let mut read = Vec::new();
            let ended = acceptor.read_to_end(&mut read).await;
            if ended.is_err() {
                acceptor.abort("it was changed");
            }
            let error = ended
                .err()
                .and_then(|error| Error::from_io(&error).cloned());
            anyhow::Ok((read, error))
        };
        let (is_sent, (read, error)) = tokio::try_join!(sending, reading)?;
        ensure!(
            is_sent == error.is_none(),
            "one end failed, and the other one did not: {error:?}"
        );
        Ok((read, error))
    }
}

fn is_corrupt(error: Option<&Error>) -> bool {
    matches!(
        error,
        Some(Error::Receive {
            fault: Fault::Corrupt(_),
            ..
        })
    )
}

/// The slot is not sealed, because it changes when a chunk is sent again. Whoever changes it ends the stream, or moves
/// the bytes to another free slot, and the reader gets the right ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bit_of_a_header_can_be_changed() -> Result<()> {
    let acceptor = Acceptor::new().await?;
    // Of the length, one bit each that makes the frame shorter, longer, and too long.
    let length = [1, 4, 20];
    for bit in length.into_iter().chain(32..8 * CHECKED_BYTES) {
        let body = acceptor.send(b"pay 100", flip(bit));
        let (read, error) = within(generous(), "the stream", body).await?;
        match &error {
            None => {
                ensure!((32..64).contains(&bit), "bit {bit} was not noticed");
                ensure!(read == b"pay 100", "bit {bit}: {read:?}");
            }
            Some(error) => ensure!(read.is_empty(), "bit {bit}: {read:?} {error:?}"),
        }
    }
    Ok(())
}

/// With a digest in place of the cipher, somebody on the path made `pay 999` of `pay 100`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_of_a_chunk_can_be_changed() -> Result<()> {
    let acceptor = Acceptor::new().await?;
    for length in 1..300 {
        let bytes = vec![b'1'; length];
        let body = acceptor.send(&bytes, flip(8 * HEADER_BYTES + 8 * (length / 2)));
        let (read, error) = within(generous(), "the stream", body).await?;
        ensure!(is_corrupt(error.as_ref()), "{length}: {error:?}");
        ensure!(read.is_empty(), "{length}: {read:?}");
    }
    Ok(())
}

/// Answers a frame with one that was made for another place.
fn replace(frames: &Arc<Mutex<VecDeque<Vec<u8>>>>, records: bool) -> Tamper {
    let frames = Arc::clone(frames);
    Arc::new(move |towards, frame| {
        let mut frames = frames.lock().unwrap();
        let to_acceptor = towards == Towards::Acceptor;
        if records && to_acceptor {
            frames.push_back(frame.clone());
        } else if let Some(recorded) = frames.pop_front().filter(|_| to_acceptor != records) {
            let slot = frame[4..8].to_vec();
            *frame = recorded;
            frame[4..8].copy_from_slice(&slot);
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_of_an_earlier_stream_with_the_same_key_is_refused() -> Result<()> {
    let acceptor = Acceptor::new().await?;
    let frames = Arc::default();
    let first = acceptor.send(b"pay 100", replace(&frames, true));
    let (read, error) = within(generous(), "the first stream", first).await?;
    ensure!(read == b"pay 100" && error.is_none(), "{error:?}");
    ensure!(frames.lock().unwrap().len() == 1, "the frame was recorded");
    let second = acceptor.send(b"pay 999", replace(&frames, false));
    let (read, error) = within(generous(), "the second stream", second).await?;
    ensure!(frames.lock().unwrap().is_empty(), "the frame was replaced");
    ensure!(read.is_empty() && is_corrupt(error.as_ref()), "{error:?}");
    Ok(())
}

/// The dialer gets its own frame back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_of_the_other_direction_is_refused() -> Result<()> {
    let acceptor = Acceptor::new().await?;
    let frames = Arc::default();
    let (mut here, mut there, _relay) = acceptor.meet(replace(&frames, true)).await?;
    let body = async {
        here.write_all(b"pay 100").await?;
        let mut read = [0; 7];
        there.read_exact(&mut read).await?;
        there.write_all(b"pay 999").await?;
        let error = here.read(&mut read).await.unwrap_err();
        ensure!(is_corrupt(Error::from_io(&error)), "{error:?}");
        Ok(())
    };
    within(generous(), "the stream", body).await?;
    ensure!(frames.lock().unwrap().is_empty(), "the frame was replaced");
    Ok(())
}

/// Nothing that somebody on the path sees holds a part of what is sent. Without encryption it does, so the test measures
/// something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_crosses_the_network_holds_nothing_of_the_data() -> Result<()> {
    let markers = markers(1000);
    let text = markers.join(" ");
    for (encryption, expected) in [(Encryption::Always, 0), (Encryption::Never, markers.len())] {
        let mut config = config();
        config.encryption = encryption;
        let (listener, key) = data_path::listener(config.clone()).await?;
        let (relay, tape) = recording(listener.local_addr(), None);
        let ends = data_path::meet(listener, relay.port(), &key, &config).await?;
        let (mut dialer, mut acceptor) = ends;
        ensure!(dialer.cipher().is_some() == (expected == 0));
        let sending = async {
            dialer.write_all(text.as_bytes()).await?;
            anyhow::Ok(dialer.finish().await?)
        };
        let reading = async {
            let mut read = Vec::new();
            acceptor.read_to_end(&mut read).await?;
            ensure!(read == text.as_bytes(), "the bytes arrived");
            Ok(acceptor.confirm()?)
        };
        let body = async { tokio::try_join!(sending, reading) };
        within(generous(), "the stream", body).await?;
        // A chunk may end within a marker.
        ensure!(tape.count(&markers).abs_diff(expected) < 10, "{encryption}");
    }
    Ok(())
}
