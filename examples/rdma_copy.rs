//! Copies one file over RDMA, or fails: the data never goes over TCP.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --example rdma_copy receive PORT > FILE
//! hostA $ RDPIPE_KEY=... cargo run --example rdma_copy send HOST PORT < FILE
//! ```

use std::net::Ipv6Addr;

use anyhow::{Result, bail};
use rdpipe::{Direction, Key, RdmaStream};
use tokio::io::AsyncWriteExt;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["send", host, port] => send(host, port.parse()?).await,
        ["receive", port] => receive(port.parse()?).await,
        _ => bail!("usage: rdma_copy send HOST PORT < FILE | rdma_copy receive PORT > FILE"),
    }
}

async fn send(host: &str, port: u16) -> Result<()> {
    let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
    let builder = RdmaStream::builder(&key).direction(Direction::Send);
    let mut rdma_stream = builder.connect_rdma((host, port)).await?;
    eprintln!("over RDMA: {}", rdma_stream.get_ref().transport_reason());
    tokio::io::copy(&mut tokio::io::stdin(), &mut rdma_stream).await?;
    // Without `finish` the peer gets an error instead of an end of file.
    rdma_stream.finish().await?;
    rdma_stream.close().await;
    Ok(())
}

async fn receive(port: u16) -> Result<()> {
    let key = Key::parse(std::env::var("RDPIPE_KEY")?)?;
    let builder = RdmaStream::builder(&key).direction(Direction::Receive);
    let listener = builder.bind((Ipv6Addr::UNSPECIFIED, port)).await?;
    eprintln!("listening on port {}", listener.local_addr().port());
    let mut rdma_stream = RdmaStream::accept(&listener).await?;
    eprintln!("over RDMA: {}", rdma_stream.get_ref().transport_reason());
    let mut stdout = tokio::io::stdout();
    // `copy_buf` writes to stdout straight from the slot into which the device of the peer wrote.
    tokio::io::copy_buf(&mut rdma_stream, &mut stdout).await?;
    stdout.flush().await?;
    // `confirm` reports to the sender that all bytes were written, so it comes after the flush.
    rdma_stream.confirm()?;
    rdma_stream.close().await;
    Ok(())
}
