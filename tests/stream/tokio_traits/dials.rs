//! Calls of `accept` and `connect` that are cancelled.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use anyhow::{Result, ensure};
use futures::FutureExt;
use rdpipe::{StreamConfig, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::yield_now,
};

use super::small;
use crate::support::{data_path::DataPath, ends::listener};

/// A listener that cancels and repeats `accept` loses no stream.
pub(crate) async fn a_cancelled_accept_loses_no_stream(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let config = over.config(small(&base));
    let (listener, key) = listener(config.clone()).await?;
    let port = listener.local_addr().port();
    for number in 0..3 {
        let dialing = async {
            let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
            stream.write_all(&[number]).await?;
            stream.shutdown().await?;
            anyhow::Ok(stream)
        };
        let accepting = async {
            let mut stream = loop {
                match listener.accept().now_or_never() {
                    Some(stream) => break stream?,
                    None => yield_now().await,
                }
            };
            ensure!(stream.read_u8().await? == number, "another stream");
            Ok(stream)
        };
        tokio::try_join!(dialing, accepting)?;
    }
    Ok(())
}

/// A `connect` that is cancelled at any point leaves a listener that serves the next dialer. If the
/// cancelled dialer was already connected, the acceptor gets an error, not an end of file.
pub(crate) async fn a_cancelled_connect_leaves_the_listener_working(
    over: DataPath,
    base: StreamConfig,
) -> Result<()> {
    let config = over.config(small(&base));
    let (listener, key) = listener(config.clone()).await?;
    let port = listener.local_addr().port();
    let dialing = async {
        let mut connected = 0;
        for polls in 1..=20 {
            let stream = polled(connect(("127.0.0.1", port), &key, &config), polls).await;
            connected += u32::from(stream.transpose()?.is_some());
        }
        let mut stream = connect(("127.0.0.1", port), &key, &config).await?;
        stream.write_all(b"!").await?;
        stream.shutdown().await?;
        ensure!(stream.read_u8().await? == b'?' && stream.read(&mut [0]).await? == 0);
        // Otherwise nothing was cancelled here.
        ensure!(connected < 20, "all of them were connected");
        Ok(())
    };
    let accepting = async {
        loop {
            // A handshake that a cancelled dialer did not complete is no error here.
            let mut stream = listener.accept().await?;
            let mut byte = [0];
            match stream.read(&mut byte).await {
                Ok(0) => anyhow::bail!("a dialer that gave up is an end of file"),
                Ok(_) => {
                    ensure!(stream.read(&mut byte).await? == 0, "more than one byte");
                    stream.write_all(b"?").await?;
                    stream.shutdown().await?;
                    return Ok(());
                }
                Err(_) => {}
            }
        }
    };
    tokio::try_join!(dialing, accepting)?;
    Ok(())
}

/// Polls `future` at most `polls` times. Returns its output, or `None` if it is still pending.
async fn polled<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => {
            left -= 1;
            if left == 0 {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        }
    })
    .await
}
