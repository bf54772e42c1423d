//! Somebody on the path who changes the frames of the data connection, and computes the checks of their headers again,
//! gets no byte of his into an encrypted stream.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rdpipe::{Direction, Encryption, Error, Fault, Key, Listener, Stream, StreamConfig, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use twox_hash::XxHash3_64;

use crate::support::{
    data_path,
    waiting::{generous, patience, within},
};

const HEADER_BYTES: usize = 128;
const CHECKED_BYTES: usize = HEADER_BYTES - 8;

/// The bytes that the dialer sends on the data connection before its first frame, and the acceptor before its own.
const PROLOGUE_BYTES: [usize; 2] = [8 + 16 + 32, 32];

/// Changes a frame: its header and its payload. The first argument is true for frames to the acceptor.
type Tamper = Arc<dyn Fn(bool, &mut Vec<u8>) + Send + Sync>;

/// Forwards connections to `target`, and has each frame changed. Returns the port.
async fn tampering(target: SocketAddr, tamper: Tamper) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((dialer, _)) = listener.accept().await {
            let tamper = Arc::clone(&tamper);
            tokio::spawn(async move {
                let acceptor = TcpStream::connect(target).await?;
                pass_both(dialer, acceptor, tamper).await
            });
        }
    });
    Ok(port)
}

async fn pass_both(dialer: TcpStream, acceptor: TcpStream, tamper: Tamper) -> Result<()> {
    let mut first = [0; 8];
    while dialer.peek(&mut first).await? < first.len() {}
    let is_data = first[7] == b'D';
    dialer.set_nodelay(true)?;
    acceptor.set_nodelay(true)?;
    let (from_dialer, to_dialer) = dialer.into_split();
    let (from_acceptor, to_acceptor) = acceptor.into_split();
    if !is_data {
        let there = tokio::spawn(pass(from_dialer, to_acceptor));
        pass(from_acceptor, to_dialer).await?;
        return there.await?;
    }
    let back = Arc::clone(&tamper);
    let there = pass_frames(from_dialer, to_acceptor, PROLOGUE_BYTES[0], |frame| {
        tamper(true, frame);
    });
    let back = pass_frames(from_acceptor, to_dialer, PROLOGUE_BYTES[1], |frame| {
        back(false, frame);
    });
    let _ = tokio::try_join!(there, back)?;
    Ok(())
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
) -> Result<()> {
    tokio::io::copy(&mut from, &mut to).await?;
    Ok(to.shutdown().await?)
}

/// Passes what comes before the frames, and then frame after frame.
async fn pass_frames(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    prologue: usize,
    tamper: impl Fn(&mut Vec<u8>),
) -> Result<()> {
    // The two ends answer each other.
    let mut before = (&mut from).take(prologue as u64);
    tokio::io::copy(&mut before, &mut to).await?;
    loop {
        let mut frame = vec![0; HEADER_BYTES];
        from.read_exact(&mut frame).await?;
        let length = u32::from_le_bytes(frame[..4].try_into()?) as usize;
        frame.resize(HEADER_BYTES + length, 0);
        from.read_exact(&mut frame[HEADER_BYTES..]).await?;
        tamper(&mut frame);
        let check = XxHash3_64::oneshot(&frame[..CHECKED_BYTES]).to_le_bytes();
        frame[CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&check);
        to.write_all(&frame).await?;
    }
}

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
    async fn meet(&self, tamper: Tamper) -> Result<(Stream, Stream)> {
        let port = tampering(self.listener.local_addr(), tamper).await?;
        let config = config();
        let dialing = async {
            let dialed = connect(("127.0.0.1", port), &self.key, &config).await;
            dialed.context("the dialer")
        };
        let accepting = async { self.listener.accept().await.context("the acceptor") };
        tokio::try_join!(dialing, accepting)
    }

    /// Sends `bytes` to the acceptor. Returns what it has read, and the error after that.
    async fn send(&self, bytes: &[u8], tamper: Tamper) -> Result<(Vec<u8>, Option<Error>)> {
        let (mut dialer, mut acceptor) = self.meet(tamper).await?;
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

fn flip(bit: usize) -> Tamper {
    Arc::new(move |_, frame| {
        let at = bit / 8 % frame.len();
        frame[at] ^= 1 << (bit % 8);
    })
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
    Arc::new(move |to_acceptor, frame| {
        let mut frames = frames.lock().unwrap();
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
    let (mut here, mut there) = acceptor.meet(replace(&frames, true)).await?;
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
    let markers: Vec<_> = (0..1000)
        .map(|n| format!("marker-{:016x}", n * 0x9e37_79b9_u64))
        .collect();
    let text = markers.join(" ");
    for (encryption, expected) in [(Encryption::Always, 0), (Encryption::Never, markers.len())] {
        let mut config = config();
        (config.encryption, config.direction) = (encryption, Direction::Both);
        let (listener, key) = data_path::listener(config.clone()).await?;
        let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let tape = Arc::clone(&seen);
        let record: Tamper = Arc::new(move |_, frame| tape.lock().unwrap().extend(&*frame));
        let port = tampering(listener.local_addr(), record).await?;
        let (mut dialer, mut acceptor) = data_path::meet(listener, port, &key, &config).await?;
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
        let seen = String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
        let found = markers
            .iter()
            .filter(|marker| seen.contains(marker.as_str()));
        // A chunk may end within a marker.
        ensure!(found.count().abs_diff(expected) < 10, "{encryption}");
    }
    Ok(())
}
