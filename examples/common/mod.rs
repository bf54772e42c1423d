//! Code that all examples share: the key and the transport from the environment, and the end of a stream in both
//! directions.
#![allow(dead_code, reason = "each example uses a part of this module")]

pub(crate) mod content;

use std::{
    env,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use listenfd::ListenFd;
use rdpipe::{Builder, Key, Listener, Stream, TransportPolicy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns a builder of streams with the key in `RDPIPE_KEY`, which must be the same at both ends, and with the
/// transport in `RDPIPE_TRANSPORT`: `rdma`, `tcp`, or `auto` (the default).
///
/// The key is not an argument, because every user of a machine can read the arguments of a process.
pub(crate) fn builder() -> Result<Builder> {
    let key =
        env::var("RDPIPE_KEY").context("RDPIPE_KEY must hold the key, the same at both ends")?;
    let transport = match env::var("RDPIPE_TRANSPORT").as_deref() {
        Ok("auto") | Err(_) => TransportPolicy::Auto,
        Ok("rdma") => TransportPolicy::Rdma,
        Ok("tcp") => TransportPolicy::Tcp,
        Ok(other) => bail!("RDPIPE_TRANSPORT is auto, rdma or tcp, and not {other}"),
    };
    // Three times the default, because a busy or emulated host can be slow to set up RDMA.
    let patience = Duration::from_secs(30);
    let builder = Stream::builder(&Key::parse(key)?).handshake_timeout(patience);
    Ok(builder.transport(transport))
}

/// Listens on all addresses, and prints the port. Port 0 selects a free port. A service of systemd that is started by
/// its socket takes that socket, whatever the port.
pub(crate) async fn listen(builder: &Builder, port: &str) -> Result<Listener> {
    let listener = match ListenFd::from_env().take_tcp_listener(0)? {
        Some(socket) => builder.listener_from_std(socket)?,
        None => builder.bind((Ipv6Addr::UNSPECIFIED, port.parse()?)).await?,
    };
    eprintln!("listening on port {}", listener.local_addr().port());
    Ok(listener)
}

/// Accepts every peer that has the key, and runs `answer` for each in a task of its own.
pub(crate) async fn serve<F>(port: &str, answer: impl Fn(Stream) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let listener = listen(&builder()?, port).await?;
    loop {
        let stream = listener.accept().await?;
        spawn(stream.peer_addr(), answer(stream));
    }
}

/// Prints the transport of the stream, and the reason for it.
pub(crate) fn tell(stream: &Stream) {
    eprintln!("over {}: {}", stream.transport(), stream.transport_reason());
}

/// Serves one peer in a task of its own, and prints the outcome.
pub(crate) fn spawn(peer: SocketAddr, serving: impl Future<Output = Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        match serving.await {
            Ok(()) => eprintln!("{peer}: done"),
            Err(error) => eprintln!("{peer}: {error:#}"),
        }
    });
}

/// Ends a stream after a complete conversation, for protocols that mark their own end and leave the
/// stream open.
///
/// Dropping a stream aborts it, because a panic must not look like an end of file. Only a FIN is an end
/// of file, so each end sends its own FIN and reads the FIN of the peer.
pub(crate) async fn goodbye(mut stream: Stream) -> Result<()> {
    stream.shutdown().await?;
    let more = stream.read(&mut [0]).await?;
    ensure!(more == 0, "the peer went on after the end of the protocol");
    // `close` waits until the last message is sent, so that the program can exit.
    stream.close().await;
    Ok(())
}
