//! Sends stdin to a listening peer, such as `rdrecv PORT > FILE` or the example `receive_stdout`.
//!
//! ```console
//! $ RDPIPE_KEY=... cargo run --example send_stdin HOST PORT < FILE
//! ```
//!
//! Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport.

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
    let mut stream = builder.connect((host.as_str(), port.parse()?)).await?;
    common::tell(&stream);
    tokio::io::copy(&mut tokio::io::stdin(), &mut stream).await?;
    // Without `finish` the peer gets an error instead of an end of file. `finish` completes when the program
    // at the peer has confirmed every byte; `shutdown()` would complete when its endpoint has received them.
    stream.finish().await?;
    stream.close().await;
    Ok(())
}
