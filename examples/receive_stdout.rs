//! Takes one stream from a peer that has the key, such as `rdsend` or the example `send_stdin`,
//! and writes it to stdout.
//!
//! ```console
//! $ RDPIPE_KEY=... cargo run --example receive_stdout PORT > FILE
//! ```
//!
//! `RDPIPE_TRANSPORT=rdma` or `tcp` insists on one.

mod common;

use anyhow::{Result, bail};
use rdpipe::Direction;
use tokio::io::AsyncWriteExt;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port] = &arguments[..] else {
        bail!("usage: receive_stdout PORT > FILE");
    };
    let builder = common::builder()?.direction(Direction::Receive);
    let mut stream = common::listen(&builder, port)?.accept().await?;
    let mut stdout = tokio::io::stdout();
    // From the slot that the chunk arrived in straight to stdout.
    tokio::io::copy_buf(&mut stream, &mut stdout).await?;
    stdout.flush().await?;
    // Only now is the sender told that its bytes were taken.
    stream.confirm()?;
    stream.close().await;
    Ok(())
}
