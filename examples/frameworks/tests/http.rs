//! axum and hyper, with hyper's client.

use std::convert::Infallible;

use anyhow::{Result, ensure};
use axum::{Router, extract::ConnectInfo, routing::get, serve::ListenerExt};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
    header,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rdpipe::{Error, Listener, LiveStreams, PeerInfo, StreamConfig};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{House, Watches};
use crate::support::data_path::DataPath;

/// The number of bytes of an answer: more than a pool.
const BYTES: usize = 20 << 20;

type Client = (SendRequest<Empty<Bytes>>, JoinHandle<hyper::Result<()>>);

/// Requests one after the other on one connection. The client ends it.
pub(crate) async fn answers_end_without_an_error(over: DataPath, base: StreamConfig) -> Result<()> {
    let house = House::open(over, base).await?;
    let (mut requests, connection) = client(&house).await?;
    let watches = house.watches.clone();
    let (live, server) = (
        house.listener.live_streams(),
        serve(house.listener, &watches),
    );
    for _ in 0..3 {
        let body = ask(&mut requests, "/", &[]).await?;
        ensure!(body.len() == BYTES);
    }
    drop(requests);
    connection.await??;
    have_ended(live, &watches).await?;
    server.abort();
    Ok(())
}

/// A client that asks for one answer and the end of the connection.
pub(crate) async fn answers_without_keep_alive_end_without_an_error(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let house = House::open(over, base).await?;
    let (mut requests, connection) = client(&house).await?;
    let watches = house.watches.clone();
    let (live, server) = (
        house.listener.live_streams(),
        serve(house.listener, &watches),
    );
    let body = ask(&mut requests, "/", &[(header::CONNECTION, "close")]).await?;
    ensure!(body.len() == BYTES);
    connection.await??;
    have_ended(live, &watches).await?;
    server.abort();
    Ok(())
}

/// A server that is told to end while a client is idle.
pub(crate) async fn a_graceful_shutdown_ends_idle_clients(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let house = House::open(over, base).await?;
    let (mut requests, connection) = client(&house).await?;
    let (live, watches) = (house.listener.live_streams(), house.watches.clone());
    let (tell, told) = oneshot::channel::<()>();
    let listener = watched(house.listener, &watches);
    let server = axum::serve(listener, app()).with_graceful_shutdown(async {
        let _ = told.await;
    });
    let server = tokio::spawn(async move { server.await });
    let body = ask(&mut requests, "/", &[]).await?;
    ensure!(body.len() == BYTES);
    let _ = tell.send(());
    connection.await??;
    server.await??;
    have_ended(live, &watches).await
}

/// A handler panics before its answer.
pub(crate) async fn a_panic_in_a_handler_is_an_error_at_the_client(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let mut base = base;
    base.on_drop = rdpipe::OnDrop::Fin;
    let house = House::open(over, base).await?;
    let (mut requests, connection) = client(&house).await?;
    let watches = house.watches.clone();
    let server = serve(house.listener, &watches);
    let answer = ask(&mut requests, "/panic", &[]).await;
    ensure!(answer.is_err(), "an answer");
    let _ = connection.await?;
    server.abort();
    let errors = watches.errors("the client");
    ensure!(
        matches!(errors[..], [Some(Error::PeerAborted { .. })]),
        "{errors:?}"
    );
    Ok(())
}

/// Both ends are hyper's, and both connection futures are checked.
pub(crate) async fn a_server_of_hyper_ends_without_an_error(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let house = House::open(over, base).await?;
    let (mut requests, connection) = client(&house).await?;
    let stream = house
        .watches
        .over("the server", house.listener.accept().await?);
    let service = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![7; BYTES]))))
    });
    let http = hyper::server::conn::http1::Builder::new();
    let server = tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
    let body = ask(&mut requests, "/", &[]).await?;
    ensure!(body.len() == BYTES);
    drop(requests);
    connection.await??;
    server.await??;
    have_ended(house.listener.live_streams(), &house.watches).await
}

/// Waits until no stream is live, and checks that the streams of both ends have ended without an error.
async fn have_ended(live: LiveStreams, watches: &Watches) -> Result<()> {
    live.ended().await;
    watches.check(2)
}

fn app() -> Router {
    Router::new()
        .route("/", get(|| async { vec![7_u8; BYTES] }))
        .route("/whoami", get(whoami))
        .route("/panic", get(panics))
}

async fn whoami(ConnectInfo(peer): ConnectInfo<PeerInfo>) -> String {
    peer.key_id.to_string()
}

async fn panics() -> &'static str {
    panic!("this panic is part of the test");
}

/// Returns the listener, which notes every stream that axum accepts.
fn watched(
    listener: Listener,
    watches: &Watches,
) -> impl axum::serve::Listener<Io = rdpipe::Stream, Addr = std::net::SocketAddr> + use<> {
    let watches = watches.clone();
    listener.tap_io(move |stream| watches.note("the server", stream))
}

fn serve(listener: Listener, watches: &Watches) -> JoinHandle<std::io::Result<()>> {
    let listener = watched(listener, watches);
    tokio::spawn(async move { axum::serve(listener, app()).await })
}

async fn client(house: &House) -> Result<Client> {
    let stream = TokioIo::new(house.connect().await?);
    let (requests, connection) = handshake(stream).await?;
    Ok((requests, tokio::spawn(connection)))
}

async fn ask(
    requests: &mut SendRequest<Empty<Bytes>>,
    path: &str,
    headers: &[(header::HeaderName, &str)],
) -> Result<Bytes> {
    let mut request = Request::get(path).header(header::HOST, "server");
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    // The answer's last byte arrives before the connection is free for the next request.
    requests.ready().await?;
    let response = requests.send_request(request.body(Empty::new())?).await?;
    ensure!(response.status() == StatusCode::OK, "{}", response.status());
    Ok(response.into_body().collect().await?.to_bytes())
}
