//! The data connection belongs to the control connection.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use rdpipe::connect;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    house::{House, SLACK_BYTES, alone},
    support::waiting::limit,
};

/// An attacker on the path reads all that the dialer sends on its data connection before the acceptor does, and sends
/// the same bytes on another connection first. The acceptor refuses the connection of the attacker, and the dialer gets
/// its stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_on_the_path_opens_no_data_connection() -> Result<()> {
    let body = Box::pin(async {
        let house = House::open().await?;
        let port = path_with_a_thief(house.address).await?;
        house.serves_through(port).await?;
        house.serves_the_right_peer().await
    });
    alone(
        "what_is_read_on_the_path_opens_no_data_connection",
        SLACK_BYTES,
        body,
    )
    .await
}

/// More connections than the acceptor keeps for one stream show the right label and a wrong proof. Each is closed, and
/// none of them spends the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_proofs_do_not_spend_the_token() -> Result<()> {
    let body = Box::pin(async {
        let house = House::open().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, target) = (listener.local_addr()?.port(), house.address);
        let path = tokio::spawn(async move {
            let (mut control, _) = listener.accept().await?;
            let control = tokio::spawn(async move {
                let mut far = TcpStream::connect(target).await?;
                copy_bidirectional(&mut control, &mut far).await
            });
            let (mut near, _) = listener.accept().await?;
            let mut opening = [0; 24];
            near.read_exact(&mut opening).await?;
            for _ in 0..8 {
                let mut thief = TcpStream::connect(target).await?;
                thief.write_all(&opening).await?;
                thief.read_exact(&mut [0; 32]).await.context("challenge")?;
                thief.write_all(&[7; 32]).await?;
                ensure!(thief.read(&mut [0]).await.unwrap_or(0) == 0, "not closed");
            }
            let mut far = TcpStream::connect(target).await?;
            far.write_all(&opening).await?;
            copy_bidirectional(&mut near, &mut far).await?;
            control.await??;
            anyhow::Ok(())
        });
        let dialing = connect(("127.0.0.1", port), &house.key, &house.config);
        let (dialed, accepted) = tokio::join!(dialing, house.listener.accept());
        let (mut here, mut there) = (dialed?, accepted?);
        here.write_all(b"unharmed").await?;
        here.shutdown().await?;
        let mut said = String::new();
        there.read_to_string(&mut said).await?;
        ensure!(said == "unharmed", "{said:?}");
        drop((here, there));
        // The streams end by an abort, so the connections may end in any way.
        path.await?
            .or_else(|error| match error.downcast::<std::io::Error>() {
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            })
    });
    alone("wrong_proofs_do_not_spend_the_token", SLACK_BYTES, body).await
}

/// Forwards the connections of one dialer. All bytes that the dialer sends on its second connection are first sent on a
/// connection of the thief, and then forwarded.
async fn path_with_a_thief(target: SocketAddr) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let (mut control, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut far = TcpStream::connect(target).await?;
            copy_bidirectional(&mut control, &mut far).await
        });
        let (near, _) = listener.accept().await?;
        let thief = TcpStream::connect(target).await?;
        robbed(near, thief, TcpStream::connect(target).await?).await
    });
    Ok(port)
}

async fn robbed(near: TcpStream, mut thief: TcpStream, far: TcpStream) -> Result<()> {
    let (mut near_reads, mut near_writes) = near.into_split();
    let (mut far_reads, mut far_writes) = far.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut far_reads, &mut near_writes).await });
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = near_reads.read(&mut buffer).await?;
        if count == 0 {
            return Ok(far_writes.shutdown().await?);
        }
        if thief.write_all(&buffer[..count]).await.is_ok() {
            // The acceptor has handled the bytes of the thief when it answers, or closes the connection. An acceptor
            // that takes the thief for the dialer sends nothing to it.
            let mut answer = [0; 32];
            let answering = thief.read(&mut answer);
            let _ = timeout(limit(Duration::from_millis(500)), answering).await;
        }
        far_writes.write_all(&buffer[..count]).await?;
    }
}
