//! A server that sends every client its own bytes back, and many clients at once.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run --example echo_server listen PORT
//! hostA $ RDPIPE_KEY=... cargo run --example echo_server connect HOST PORT [CLIENTS [MESSAGES]]
//! ```
//!
//! Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport.

mod common;

use anyhow::{Result, bail, ensure};
use rdpipe::{Builder, Stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["listen", port] => common::serve(port, echo).await,
        ["connect", host, port] => connect(host, port, 8, 100).await,
        ["connect", host, port, clients] => connect(host, port, clients.parse()?, 100).await,
        ["connect", host, port, clients, messages] => {
            connect(host, port, clients.parse()?, messages.parse()?).await
        }
        _ => bail!(
            "usage: echo_server listen PORT | echo_server connect HOST PORT [CLIENTS [MESSAGES]]"
        ),
    }
}

async fn echo(mut stream: Stream) -> Result<()> {
    let (reader, writer) = stream.split();
    tokio::io::copy_buf(reader, writer).await?;
    // `copy_buf` has read the FIN of the client. This FIN is the end of file for the client: without it,
    // the drop of the stream would be a failure there.
    stream.shutdown().await?;
    Ok(())
}

async fn connect(host: &str, port: &str, clients: u32, messages: u32) -> Result<()> {
    let builder = common::builder()?;
    let port = port.parse()?;
    let mut running = JoinSet::new();
    for number in 0..clients {
        let (builder, host) = (builder.clone(), host.to_owned());
        running.spawn(async move { client(&builder, &host, port, number, messages).await });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    println!("{clients} clients, {messages} messages each: all came back");
    Ok(())
}

async fn client(
    builder: &Builder,
    host: &str,
    port: u16,
    number: u32,
    messages: u32,
) -> Result<()> {
    let mut stream = builder.connect((host, port)).await?;
    common::tell(&stream);
    for round in 0..messages {
        let message = format!("message {round} of client {number}\n").repeat(1 + round as usize);
        stream.write_all(message.as_bytes()).await?;
        let mut answer = vec![0; message.len()];
        stream.read_exact(&mut answer).await?;
        ensure!(
            answer == message.as_bytes(),
            "another answer than the message"
        );
    }
    common::goodbye(stream).await
}
