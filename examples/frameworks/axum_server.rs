//! A server of axum, unmodified: `axum::serve` takes the listener.
//!
//! ```console
//! hostB $ RDPIPE_KEY=... cargo run -p frameworks --example axum_server PORT
//! hostA $ RDPIPE_KEY=... cargo run -p frameworks --example http fetch HOST PORT BYTES
//! ```
//!
//! `GET /BYTES` returns that many bytes, those that the example `http` expects, and `GET /` the id of the client's key.
//! Set `RDPIPE_TRANSPORT` to `rdma` or `tcp` to allow only this transport. The server ends on ^C, after the streams
//! that are open.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result};
use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Path},
    routing::get,
};
use rdpipe::PeerInfo;

#[tokio::main]
async fn main() -> Result<()> {
    let port = std::env::args().nth(1).context("usage: axum_server PORT")?;
    let listener = common::listen(&common::builder()?, &port).await?;
    let live = listener.live_streams();
    let app = Router::new()
        .route("/", get(whoami))
        .route("/{bytes}", get(bytes))
        .into_make_service_with_connect_info::<PeerInfo>();
    let interrupted = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    let serving = axum::serve(listener, app);
    serving.with_graceful_shutdown(interrupted).await?;
    live.ended().await;
    Ok(())
}

async fn whoami(ConnectInfo(peer): ConnectInfo<PeerInfo>) -> String {
    format!("{} over {}\n", peer.key_id, peer.transport)
}

async fn bytes(Path(bytes): Path<usize>) -> Body {
    Body::from_stream(common::content::pieces(bytes))
}
