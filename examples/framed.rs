//! Requests and responses in frames, with `tokio_util::codec::Framed`. Each frame is a length and that
//! many bytes.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --example framed serve PORT
//! hostA $ RDPIPE_KEY=... cargo run --example framed ask HOST PORT WORD...
//! ```
//!
//! Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport.

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

/// Answers every frame with the same text in capitals.
async fn answer(stream: Stream) -> Result<()> {
    let mut frames = Framed::new(stream, LengthDelimitedCodec::new());
    // `None` is the FIN of the client. A client that is killed is an error, and so is a FIN inside a frame.
    while let Some(request) = frames.try_next().await? {
        frames.send(&request.to_ascii_uppercase()[..]).await?;
    }
    // The `close` of the sink shuts the stream down, which sends the FIN. Dropping the stream would not send it.
    SinkExt::<&[u8]>::close(&mut frames).await?;
    Ok(())
}

async fn ask(host: &str, port: &str, words: &[&str]) -> Result<()> {
    let stream = common::builder()?.connect((host, port.parse()?)).await?;
    common::tell(&stream);
    let mut frames = Framed::new(stream, LengthDelimitedCodec::new());
    for word in words {
        frames.send(word.as_bytes()).await?;
        let response = frames.try_next().await?.context("no answer")?;
        println!("{}", String::from_utf8_lossy(&response));
    }
    common::goodbye(frames.into_inner()).await
}
