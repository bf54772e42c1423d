//! A long way to a listener.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

/// What arrives at a time, or the end of a direction.
type Packet = (Instant, Option<Vec<u8>>);

/// Starts a proxy for `target` which every packet takes this long to cross, one way. Returns its port.
pub(crate) async fn proxy(target: SocketAddr, one_way: Duration) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(carry(near, target, one_way));
        }
    });
    Ok(port)
}

async fn carry(near: TcpStream, target: SocketAddr, one_way: Duration) -> Result<()> {
    near.set_nodelay(true)?;
    let (near_reads, near_writes) = near.into_split();
    let (sent, arriving) = mpsc::unbounded_channel();
    tokio::spawn(take(near_reads, sent, one_way));
    // The opening of a connection is a packet too: what follows it at once arrives together with it.
    sleep(one_way).await;
    let far = TcpStream::connect(target).await?;
    far.set_nodelay(true)?;
    let (far_reads, far_writes) = far.into_split();
    tokio::spawn(deliver(arriving, far_writes));
    let (sent, arriving) = mpsc::unbounded_channel();
    tokio::spawn(take(far_reads, sent, one_way));
    deliver(arriving, near_writes).await;
    Ok(())
}

async fn take(mut from: OwnedReadHalf, sent: mpsc::UnboundedSender<Packet>, one_way: Duration) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let bytes = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => None,
            Ok(count) => Some(buffer[..count].to_vec()),
        };
        let is_end = bytes.is_none();
        if sent.send((Instant::now() + one_way, bytes)).is_err() || is_end {
            return;
        }
    }
}

async fn deliver(mut arriving: mpsc::UnboundedReceiver<Packet>, mut to: OwnedWriteHalf) {
    while let Some((at, bytes)) = arriving.recv().await {
        sleep_until(at).await;
        let written = match bytes {
            Some(bytes) => to.write_all(&bytes).await,
            None => to.shutdown().await,
        };
        if written.is_err() {
            return;
        }
    }
}
