//! A server and a client of tonic, unmodified: the server takes `listener.incoming()`.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run -p frameworks --example grpc serve PORT
//! hostA $ RDPIPE_KEY=... cargo run -p frameworks --example grpc ask HOST PORT MESSAGES
//! ```
//!
//! The client sends that many messages of a mebibyte, and checks the answers. Set `RDPIPE_TRANSPORT` to `rdma` or `tcp`
//! to allow only this transport.

#[path = "../common/mod.rs"]
mod common;
mod grpc_echo;

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt, stream};
use grpc_echo::{Echo, PATH, PlainCodec};
use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rdpipe::OnDrop;
use tonic::{
    Request,
    client::Grpc,
    transport::{Endpoint, Server},
};

/// The size of each message.
const MESSAGE_BYTES: usize = 1 << 20;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", port] => serve(port).await,
        ["ask", host, port, messages] => ask(host, port.parse()?, messages.parse()?).await,
        _ => bail!("usage: grpc serve PORT | grpc ask HOST PORT MESSAGES"),
    }
}

async fn serve(port: &str) -> Result<()> {
    // tonic drops what it owns; HTTP/2 detects an answer that is not complete.
    let builder = common::builder()?.on_drop(OnDrop::Fin);
    let listener = common::listen(&builder, port).await?;
    let serving = Server::builder().serve_with_incoming(Echo, listener.incoming());
    Ok(serving.await?)
}

async fn ask(host: &str, port: u16, messages: usize) -> Result<()> {
    let builder = common::builder()?.on_drop(OnDrop::Fin);
    let peer = (host.to_owned(), port);
    let connector = tower::service_fn(move |_| {
        let (builder, peer) = (builder.clone(), peer.clone());
        async move {
            let stream = builder.connect(peer).await?;
            common::tell(&stream);
            Ok::<_, rdpipe::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://rdpipe");
    let mut client = Grpc::new(endpoint.connect_with_connector(connector).await?);
    client.ready().await?;
    let message = |number: usize| Bytes::from(vec![number.to_le_bytes()[0]; MESSAGE_BYTES]);
    let questions = Request::new(stream::iter((0..messages).map(message)));
    let method = PathAndQuery::from_static(PATH);
    let answers = client.streaming(questions, method, PlainCodec).await?;
    let mut answers = answers.into_inner();
    let mut count = 0;
    while let Some(answer) = answers.next().await.transpose()? {
        ensure!(answer == message(count), "another answer than the message");
        count += 1;
    }
    ensure!(count == messages, "{count} answers");
    println!("{messages} messages, and all came back");
    Ok(())
}
