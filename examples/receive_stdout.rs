//! Receives one stream from a peer that has the key, such as `rdsend` or the example `send_stdin`,
//! and writes it to stdout.
//!
//! ```console
//! $ RDPIPE_KEY=... cargo run --example receive_stdout PORT > FILE
//! ```
//!
//! Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport.

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
    let listener = common::listen(&builder, port).await?;
    let mut stream = listener.accept().await?;
    let mut stdout = tokio::io::stdout();
    // `copy_buf` writes to stdout straight from the slot in which the chunk arrived.
    tokio::io::copy_buf(&mut stream, &mut stdout).await?;
    stdout.flush().await?;
    // `confirm` reports to the sender that all bytes were written, so it comes after the flush.
    stream.confirm()?;
    stream.close().await;
    Ok(())
}
