//! Sends stdin to `consumer HOST PORT`, over RDMA or not at all; without its feature `rdma` over TCP.

use std::error::Error;

#[cfg(feature = "rdma")]
use rdpipe::RdmaStream;
use rdpipe::{Direction, Key, StreamConfig};
use tokio::io::AsyncWriteExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, host, port] = &arguments[..] else {
        return Err("usage: consumer HOST PORT < FILE".into());
    };
    let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
    let mut config = StreamConfig::default();
    config.direction = Direction::Send;
    #[cfg(feature = "rdma")]
    let mut stream = RdmaStream::connect(host, port.parse()?, &key, &config).await?;
    #[cfg(not(feature = "rdma"))]
    let mut stream = rdpipe::connect(host, port.parse()?, &key, &config).await?;
    tokio::io::copy(&mut tokio::io::stdin(), &mut stream).await?;
    stream.shutdown().await?;
    stream.finish().await?;
    stream.close().await;
    Ok(())
}
