//! Sends stdin to a listening peer, such as `rdrecv PORT > FILE` or the example `receive_stdout`.
//!
//! ```console
//! $ RDPIPE_KEY=... cargo run --example send_stdin HOST PORT < FILE
//! ```
//!
//! `RDPIPE_TRANSPORT=rdma` or `tcp` insists on one.

mod common;

use anyhow::{Result, bail};
use rdpipe::Direction;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, port] = &arguments[..] else {
        bail!("usage: send_stdin HOST PORT < FILE");
    };
    let builder = common::builder()?.direction(Direction::Send);
    let mut stream = builder.connect(host, port.parse()?).await?;
    common::tell(&stream);
    tokio::io::copy(&mut tokio::io::stdin(), &mut stream).await?;
    // Without this the peer sees a failure, not an end. It completes when the peer's program has
    // confirmed that it took every byte; `shutdown()` when the peer's endpoint has them.
    stream.finish().await?;
    stream.close().await;
    Ok(())
}
