//! Sends stdin to HOST and PORT over RDMA only; without the feature `rdma`, over TCP.

use std::error::Error;

#[cfg(feature = "rdma")]
use rdpipe::RdmaStream;
#[cfg(not(feature = "rdma"))]
use rdpipe::Stream;
use rdpipe::{Direction, Key};
use tokio::io::AsyncWriteExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, host, port] = &arguments[..] else {
        return Err("usage: consumer HOST PORT < FILE".into());
    };
    let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
    #[cfg(feature = "rdma")]
    let mut stream = RdmaStream::builder(&key)
        .direction(Direction::Send)
        .connect_rdma((host.as_str(), port.parse()?))
        .await?;
    #[cfg(not(feature = "rdma"))]
    let mut stream = Stream::builder(&key)
        .direction(Direction::Send)
        .connect((host.as_str(), port.parse()?))
        .await?;
    tokio::io::copy(&mut tokio::io::stdin(), &mut stream).await?;
    stream.shutdown().await?;
    stream.finish().await?;
    stream.close().await;
    Ok(())
}
