//! Streams over RDMA whose links and express paths are lost: what both ends count. These tests need a device.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use super::memory::ALONE;
use crate::{
    Key, Listener, Rails, StreamConfig, TransportPolicy,
    transport::{Stream, connect, rdma::LocalPorts},
};

/// Streams whose links are replaced again and again are not slower than this.
const HANGS: Duration = Duration::from_secs(600);

const CHUNK: usize = 64 << 10;

/// The number of messages each way.
const MESSAGES: usize = 60;

/// Returns the settings of a stream with so many rails, or `None`, and prints why, if this machine has no RDMA.
fn config(rails: u8) -> Option<StreamConfig> {
    let mut config = StreamConfig {
        transport: TransportPolicy::Rdma,
        rails: Rails::Exactly(rails),
        ..StreamConfig::default()
    };
    (config.rdma.chunk_bytes, config.rdma.depth) = (CHUNK, 4);
    if let Err(none) = LocalPorts::discover(&config) {
        let required = std::env::var_os("RDPIPE_REQUIRE_RDMA").is_some();
        assert!(!required, "{}", none.reason);
        eprintln!("SKIPPED: {}", none.reason);
        return None;
    }
    Some(config)
}

async fn pair(config: StreamConfig) -> (Stream, Stream) {
    let key = Key::generate().unwrap().key().clone();
    let listening = Listener::bind("127.0.0.1:0", key.clone(), config.clone());
    let listener = listening.await.unwrap();
    let dialing = connect(("127.0.0.1", listener.local_addr().port()), &key, &config);
    let (dialed, accepted) = tokio::join!(dialing, listener.accept());
    (dialed.unwrap(), accepted.unwrap())
}

/// Sends and receives messages, most of them small ones and some larger than a chunk.
async fn talk(stream: &mut Stream) {
    let sizes = (0..MESSAGES).map(|nth| if nth % 5 == 3 { CHUNK * 3 / 2 } else { nth + 1 });
    let total = sizes.clone().sum::<usize>();
    let (mut read, mut write) = tokio::io::split(stream);
    let writing = async {
        for size in sizes {
            write.write_all(&vec![7; size]).await.unwrap();
            write.flush().await.unwrap();
        }
        write.shutdown().await.unwrap();
    };
    let reading = async {
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).await.unwrap();
        bytes.len()
    };
    let ((), received) = tokio::join!(writing, reading);
    assert_eq!(received, total);
}

/// The watch over the data path compares what one end has sent with what the other one has received. If a frame that was
/// sent again counted twice or not at all, a stream that is idle would lose its links, or fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_byte_counts_once_however_often_it_is_sent() {
    let _alone = ALONE.lock().await;
    for rails in [1, 3] {
        for (express, link) in [(5, 0), (0, 4), (9, 5)] {
            let Some(mut config) = config(rails) else {
                return;
            };
            (config.faults.lose_express_at, config.faults.lose_link_at) = (express, link);
            let (mut a, mut b) = pair(config).await;
            assert_eq!(a.rails(), usize::from(rails));
            let talking = async { tokio::join!(talk(&mut a), talk(&mut b)) };
            timeout(HANGS, talking).await.expect("it hangs");
            let counted = async {
                for end in [&a, &b] {
                    let (data, stats) = (&end.info().state.data, end.stats());
                    while [data.sent(), data.received()] != [stats.bytes_sent, stats.bytes_received]
                    {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            };
            let counted = timeout(HANGS / 10, counted).await;
            assert!(counted.is_ok(), "{rails} rails, {express}, {link}");
        }
    }
}
