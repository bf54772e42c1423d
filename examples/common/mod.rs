//! What all examples share: where key and transport come from, and how a stream is ended in both directions.
#![allow(dead_code, reason = "each example uses its own part of it")]

use std::{
    env,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rdpipe::{Builder, Key, Listener, Stream, TransportPolicy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Streams with the key `RDPIPE_KEY`, the same at both ends, over `RDPIPE_TRANSPORT`: `rdma`, `tcp`,
/// or whichever there is.
///
/// The key is no argument, since everybody on a machine can read those.
pub(crate) fn builder() -> Result<Builder> {
    let key =
        env::var("RDPIPE_KEY").context("RDPIPE_KEY must hold the key, the same at both ends")?;
    let transport = match env::var("RDPIPE_TRANSPORT").as_deref() {
        Ok("auto") | Err(_) => TransportPolicy::Auto,
        Ok("rdma") => TransportPolicy::Rdma,
        Ok("tcp") => TransportPolicy::Tcp,
        Ok(other) => bail!("RDPIPE_TRANSPORT is auto, rdma or tcp, and not {other}"),
    };
    // Thrice the default: a host that is busy, or emulated, may take its time for RDMA.
    let patience = Duration::from_secs(30);
    let builder = Stream::builder(&Key::parse(key)?).handshake_timeout(patience);
    Ok(builder.transport(transport))
}

/// Listens on all addresses, and says on which port: 0 takes a free one.
pub(crate) fn listen(builder: &Builder, port: &str) -> Result<Listener> {
    let listener = builder.bind((Ipv6Addr::UNSPECIFIED, port.parse()?).into())?;
    eprintln!("listening on port {}", listener.local_addr().port());
    Ok(listener)
}

/// Serves every peer that has the key, beside the others.
pub(crate) async fn serve<F>(port: &str, answer: impl Fn(Stream) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut listener = listen(&builder()?, port)?;
    loop {
        match listener.accept().await {
            Ok(stream) => spawn(stream.peer_addr(), answer(stream)),
            // Such an error is one peer's, who has the key and gets no stream: the listener goes on.
            Err(error) => eprintln!("{error}"),
        }
    }
}

/// Says what carries the stream, and where or why.
pub(crate) fn tell(stream: &Stream) {
    eprintln!("over {}: {}", stream.transport(), stream.transport_reason());
}

/// Serves one peer in a task of its own, and says how that ended.
pub(crate) fn spawn(peer: SocketAddr, serving: impl Future<Output = Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        match serving.await {
            Ok(()) => eprintln!("{peer}: done"),
            Err(error) => eprintln!("{peer}: {error:#}"),
        }
    });
}

/// Ends a conversation in which everything has been said: for protocols that know their ends by
/// themselves, and so leave the stream behind open.
///
/// Dropping a stream is an abort, since a panic must not look like an end. Only a FIN is an end
/// of file, so each end sends its own and takes the other's.
pub(crate) async fn goodbye(mut stream: Stream) -> Result<()> {
    stream.shutdown().await?;
    let more = stream.read(&mut [0]).await?;
    ensure!(more == 0, "the peer went on after the end of the protocol");
    // A program that exits now must not take the last message along.
    stream.close().await;
    Ok(())
}
