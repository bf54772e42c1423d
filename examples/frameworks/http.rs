//! HTTP/1 with hyper: a server that returns any number of bytes on request, and a client that checks them.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run -p frameworks --example http serve PORT
//! hostA $ RDPIPE_KEY=... cargo run -p frameworks --example http fetch HOST PORT BYTES
//! ```
//!
//! Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport.
//!
//! hyper shuts a stream down and drops it, which ends it without an error at both ends. A client that exits at once
//! takes its stream back with `without_shutdown`, to wait until the last message has been sent.

#[path = "../common/mod.rs"]
mod common;

use std::{cmp::min, convert::Infallible};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use common::content::{BLOCK_BYTES, block, pieces};
use futures::TryStreamExt;
use http_body_util::{BodyExt, Empty, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode, body::Frame, body::Incoming, client, header, server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rdpipe::Stream;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", port] => common::serve(port, connection).await,
        ["fetch", host, port, bytes] => fetch(host, port, bytes.parse()?).await,
        _ => bail!("usage: http serve PORT | http fetch HOST PORT BYTES"),
    }
}

async fn connection(stream: Stream) -> Result<()> {
    let http = server::conn::http1::Builder::new();
    let connection = http.serve_connection(TokioIo::new(stream), service_fn(answer));
    Ok(connection.await?)
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers `GET /BYTES` with that many bytes, which are made while the client reads them.
async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let Ok(bytes) = request.uri().path()[1..].parse() else {
        let mut response = Response::new(Empty::new().boxed_unsync());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    };
    let frames = pieces(bytes).map_ok(Frame::data);
    Ok(Response::new(StreamBody::new(frames).boxed_unsync()))
}

async fn fetch(host: &str, port: &str, bytes: usize) -> Result<()> {
    let stream = common::builder()?.connect((host, port.parse()?)).await?;
    common::tell(&stream);
    let (mut requests, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection.without_shutdown());

    let request = Request::get(format!("/{bytes}")).header(header::HOST, host);
    let response = requests
        .send_request(request.body(Empty::<Bytes>::new())?)
        .await?;
    ensure!(response.status().is_success(), "{}", response.status());
    ensure!(
        check(response.into_body()).await? == bytes,
        "not as many bytes"
    );
    println!("{bytes} bytes, and the right ones");

    // Without a sender of requests, hyper ends the connection and returns the stream.
    drop(requests);
    common::goodbye(connection.await??.io.into_inner()).await
}

/// Compares a body with the expected bytes while it arrives. Returns its length.
async fn check(mut body: Incoming) -> Result<usize> {
    let block = block();
    let mut at = 0;
    while let Some(frame) = body.frame().await {
        let mut data = &frame?.into_data().unwrap_or_default()[..];
        while !data.is_empty() {
            let right = &block[at % BLOCK_BYTES..];
            let (piece, rest) = data.split_at(min(data.len(), right.len()));
            ensure!(
                piece == &right[..piece.len()],
                "wrong bytes behind byte {at}"
            );
            at += piece.len();
            data = rest;
        }
    }
    Ok(at)
}
