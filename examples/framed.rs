//! Requests and responses in frames, with `tokio_util::codec::Framed`: each a number of bytes, and
//! then so many bytes.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --example framed serve PORT
//! hostA $ RDPIPE_KEY=... cargo run --example framed ask HOST PORT WORD...
//! ```
//!
//! `RDPIPE_TRANSPORT=rdma` or `tcp` insists on one.

mod common;

use anyhow::{Context, Result, bail};
use futures::{SinkExt, TryStreamExt};
use rdpipe::Stream;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", port] => common::serve(port, answer).await,
        ["ask", host, port, ref words @ ..] => ask(host, port, words).await,
        _ => bail!("usage: framed serve PORT | framed ask HOST PORT WORD..."),
    }
}

/// Gives every frame back in capitals.
async fn answer(stream: Stream) -> Result<()> {
    let mut frames = Framed::new(stream, LengthDelimitedCodec::new());
    // `None` is the client's FIN. A client that dies is an error, and so is a FIN inside a frame.
    while let Some(request) = frames.try_next().await? {
        frames.send(&request.to_ascii_uppercase()[..]).await?;
    }
    // The sink's `close` shuts the stream down: that is the FIN, which dropping it would not send.
    SinkExt::<&[u8]>::close(&mut frames).await?;
    Ok(())
}

async fn ask(host: &str, port: &str, words: &[&str]) -> Result<()> {
    let stream = common::builder()?.connect(host, port.parse()?).await?;
    common::tell(&stream);
    let mut frames = Framed::new(stream, LengthDelimitedCodec::new());
    for word in words {
        frames.send(word.as_bytes()).await?;
        let response = frames.try_next().await?.context("no answer")?;
        println!("{}", String::from_utf8_lossy(&response));
    }
    common::goodbye(frames.into_inner()).await
}
